"""Writers of taints that race on one node, and what each of them must find afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from muster.kube.client import Client
from muster.kube.objects.node import Node, Taint
from muster.kube.objects.taints import NodeChange
from muster.kube.taintwriter import TaintWriter

EFFECT = "NoSchedule"
FOREIGN = Taint(key="example.com/foreign", value="theirs", effect=EFFECT)
WRITERS = 6
ROUNDS = 8


def key(number: int) -> str:
    return f"muster.dev/writer-{number}"


def always(change: NodeChange) -> Callable[[Node], NodeChange]:
    """What is wanted of a node whatever it is like."""
    return lambda _: change


async def race(clients: Callable[[], Client], node: str) -> None:
    """Six writers change their own taint, a label and an annotation ROUNDS times each, all at once."""

    async def writer(number: int) -> None:
        mine = TaintWriter(clients(), [(key(number), EFFECT)], field_manager=f"writer-{number}")
        for turn in range(ROUNDS):
            text = f"turn-{turn}"
            change = NodeChange(
                put=(Taint(key=key(number), value=text, effect=EFFECT),),
                labels={key(number): text},
                annotations={key(number): text},
            )
            if turn == ROUNDS // 2:
                gone: dict[str, str | None] = {key(number): None}
                change = NodeChange(drop=((key(number), EFFECT),), labels=gone, annotations=gone)
            await mine.write(node, always(change))

    async with asyncio.TaskGroup() as group:
        for number in range(WRITERS):
            group.create_task(writer(number))


def differing(before: Node, after: Node) -> set[str]:
    """The keys of taints that two versions of a node do not agree on."""

    def values(node: Node) -> dict[str, str]:
        return {taint.key: taint.value for taint in node.spec.taints}

    old, new = values(before), values(after)
    return {each for each in old.keys() | new.keys() if old.get(each) != new.get(each)}


def check_end(node: Node) -> None:
    """Everybody's last word stands, and the foreign taint as it was."""
    last = f"turn-{ROUNDS - 1}"
    taints = {(taint.key, taint.effect): taint for taint in node.spec.taints}
    assert taints[(FOREIGN.key, FOREIGN.effect)] == FOREIGN
    for number in range(WRITERS):
        assert taints[(key(number), EFFECT)].value == last
        assert node.metadata.labels[key(number)] == last
        assert node.metadata.annotations[key(number)] == last
