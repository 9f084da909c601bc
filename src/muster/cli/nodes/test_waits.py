"""Finds what keeps nodes from being tested, with one set of requests for all nodes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from muster.api.names import LABEL_BALLOON, LABEL_PREFLIGHT
from muster.api.trust import Doubt, doubt, identity, needs_test, tested
from muster.cli.health.config import health_config
from muster.cli.nodes.node_list import is_pending
from muster.cli.target import if_allowed
from muster.fleet.preflight.config import CONFIG_MAP
from muster.fleet.preflight.events import INCONCLUSIVE, REFUSED
from muster.fleet.preflight.refusals import REFUSED_MAX_S
from muster.fleet.preflight.results import read_test
from muster.fleet.preflight.why_untested import Surroundings, why_not_tested
from muster.kube.objects.core import ConfigMap, Event
from muster.kube.objects.pod import Pod

if TYPE_CHECKING:
    from muster.api.preflight import Preflight
    from muster.kube.client import Client
    from muster.kube.objects.node import Node

_REFUSED_FOR_S: Final = 2 * REFUSED_MAX_S
"""The controller repeats the Event of a lasting refusal within this time; an older Event has ended."""
_INCONCLUSIVE_FOR_S: Final = 7200.0


async def read_test_waits(
    client: Client,
    namespace: str,
    team_key: str,
    nodes: Sequence[Node],
    records: Mapping[str, Preflight],
    in_use: frozenset[str],
) -> Mapping[str, str]:
    """Return by node what its test does or waits for; nodes that need no test are left out.

    Args:
        client: the API server.
        namespace: Muster's own.
        team_key: key of the taint of nodes that a team owns.
        nodes: the nodes in question.
        records: their newest tests.
        in_use: nodes whose GPUs are in use.
    """
    pods = await if_allowed(client.list_all(Pod, namespace, label_selector=LABEL_PREFLIGHT))
    tests = {test.node: pod for pod in (pods.items if pods else ()) if (test := read_test(pod)) is not None}
    waiting = [node for node in nodes if node.name in tests or _waits(node, records.get(node.name))]
    if not waiting:
        return {}
    found, refused, inconclusive, places = await asyncio.gather(
        if_allowed(client.get(ConfigMap, CONFIG_MAP, namespace)),
        _said(client, REFUSED, max(time.time() - _REFUSED_FOR_S, _last_made(tests.values(), records.values()))),
        _said(client, INCONCLUSIVE, time.time() - _INCONCLUSIVE_FOR_S),
        _places(client, team_key, [pod for pod in tests.values() if not (pod.spec.node_name or pod.finished)]),
    )
    config = health_config(None, found)
    if found is None:  # tests are off: report this only for nodes that still wait for a test
        waiting = [node for node in waiting if node.name in tests or is_pending(node)]
    anybodys = next(iter(refused.values()), "")
    running = sum(not pod.finished and LABEL_BALLOON not in pod.metadata.labels for pod in tests.values())
    return {
        node.name: why_not_tested(
            node,
            Surroundings(
                config=config.tests,
                broken=bool(config.problems),
                team_key=team_key,
                pod=tests.get(node.name),
                place=places.get(node.name, ""),
                refused=refused.get(node.name, anybodys),
                inconclusive=inconclusive.get(node.name, ""),
                running=running,
                in_use=node.name in in_use,
            ),
        )
        for node in waiting
    }


def _waits(node: Node, record: Preflight | None) -> bool:
    if not needs_test(node):
        return False
    return doubt(identity(node), tested(record.spec) if record is not None else None) not in (Doubt.NONE, Doubt.FAILED)


def _last_made(tests: Iterable[Pod], records: Iterable[Preflight]) -> float:
    """Returns when the last known test was created or ran: earlier refusals have ended."""
    made = [pod.metadata.creation_timestamp for pod in tests]
    return max((at.timestamp() for at in (*made, *(each.spec.time for each in records)) if at is not None), default=0.0)


async def _said(client: Client, reason: str, since: float) -> dict[str, str]:
    """Returns the messages of Events with this reason since then, by node, the newest first."""
    listed = await if_allowed(client.list_all(Event, field_selector=f"reason={reason}"))
    newest: dict[str, tuple[float, str]] = {}
    for event in listed.items if listed is not None else ():
        at = event.last_timestamp.timestamp() if event.last_timestamp is not None else 0.0
        name = event.involved_object.name
        if at >= since and at >= newest.get(name, (0.0, ""))[0]:
            newest[name] = (at, event.message)
    return {name: message for name, (_, message) in sorted(newest.items(), key=lambda item: -item[1][0])}


async def _places(client: Client, team_key: str, pods: Sequence[Pod]) -> dict[str, str]:
    """Returns the scheduler's messages about test pods without a node, by the node that each one tests."""
    if not pods:
        return {}
    from muster.scheduler.explain.loading import load_state
    from muster.scheduler.explain.why_waiting import explain

    state = await if_allowed(load_state(client, team_key))
    if state is None:
        return {}
    snapshot, said = state.snapshot(), dict[str, str]()
    for pod in pods:
        gang, test = snapshot.find(pod.namespace, pod.name), read_test(pod)
        if gang is not None and test is not None:
            said[test.node] = explain(snapshot, gang, now=time.time()).summary
    return said
