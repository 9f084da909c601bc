"""The only writer of nodes' taints in Muster.

`Node.spec.taints` is one atomic list (Kubernetes API reference, Node: `listType=atomic`), so each write replaces all
entries. A write sends the list as it was read, with only the writer's own entries changed. Its precondition is the
resourceVersion that was read. Labels and annotations that belong to a taint are in the same write, so that they never
contradict it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Any

import msgspec

from muster.kube.client import MERGE_PATCH, Client
from muster.kube.errors import Conflict, NotFound
from muster.kube.objects.node import Node, Taint
from muster.kube.objects.struct import to_dict
from muster.kube.objects.taints import NodeChange, TaintId

_ATTEMPTS = 16
_PAUSE_S = 0.01
_PAUSE_MAX_S = 0.5


class Outcome(StrEnum):
    """The result of a write."""

    WRITTEN = "Written"
    UNCHANGED = "Unchanged"
    """The node was as wanted already: nothing was written."""
    DECLINED = "Declined"
    """The node as it is now is not to be changed after all."""
    GONE = "Gone"


class Written(msgspec.Struct, frozen=True):
    """The outcome, and the node as the API server has it afterwards; None where it is gone."""

    outcome: Outcome
    node: Node | None


class TaintWriter:
    """Writes the taints of one owner, and the labels and annotations that go with them.

    Args:
        client: the API server.
        owns: the taints this writer may put or drop; all others it leaves as they are.
        field_manager: who writes, in the node's managedFields.
        rng: source of jitter.
    """

    def __init__(
        self, client: Client, owns: Collection[TaintId], *, field_manager: str, rng: random.Random | None = None
    ) -> None:
        self._client = client
        self._owns = frozenset(owns)
        self._field_manager = field_manager
        self._rng = rng or random.Random()

    async def write(
        self, name: str, wanted: Callable[[Node], NodeChange | None], *, known: Node | None = None
    ) -> Written:
        """Bring a node to what `wanted` says of it as it is; read and asked again whenever others wrote meanwhile.

        Args:
            name: of the node.
            wanted: from the node as read to the change; None where it is to be left alone.
            known: the node as a cache has it, which saves a request where that is still current.

        Raises:
            ApiError: the write was refused; Conflict where others wrote first every time.
            ValueError: a taint that this writer does not own.
        """
        node = known
        for attempt in range(_ATTEMPTS):
            try:
                if node is None:
                    node = await self._client.get(Node, name)
                change = wanted(node)
                if change is None:
                    return Written(Outcome.DECLINED, node)
                patch = self._patch(node, change)
                if patch is None:
                    return Written(Outcome.UNCHANGED, node)
                return Written(Outcome.WRITTEN, await self._send(name, patch))
            except NotFound:
                return Written(Outcome.GONE, None)
            except Conflict:
                if attempt == _ATTEMPTS - 1:
                    raise
            if attempt or known is None:  # a stale cache does not mean that another writer is active
                await asyncio.sleep(self._rng.uniform(0, min(_PAUSE_MAX_S, _PAUSE_S * 2**attempt)))
            node = None
        raise AssertionError("unreachable")

    async def _send(self, name: str, patch: dict[str, Any]) -> Node:
        return await self._client.patch(Node, name, patch, content_type=MERGE_PATCH, field_manager=self._field_manager)

    def _patch(self, node: Node, change: NodeChange) -> dict[str, Any] | None:
        """The merge patch, with the precondition; None where the node is as wanted."""
        meta: dict[str, Any] = {}
        for section, there, asked in (
            ("labels", node.metadata.labels, change.labels),
            ("annotations", node.metadata.annotations, change.annotations),
        ):
            differs = {key: value for key, value in asked.items() if there.get(key) != value}
            if differs:
                meta[section] = differs
        patch: dict[str, Any] = {}
        taints = self._taints(node.spec.taints, change)
        if taints != node.spec.taints:
            patch["spec"] = {"taints": [to_dict(taint) for taint in taints] or None}
        if not (patch or meta):
            return None
        # The UID as well: a node of the same name may have been made since.
        return {**patch, "metadata": {**meta, "resourceVersion": node.metadata.resource_version, "uid": node.uid}}

    def _taints(self, there: tuple[Taint, ...], change: NodeChange) -> tuple[Taint, ...]:
        put = {(taint.key, taint.effect): taint for taint in change.put}
        foreign = (put.keys() | set(change.drop)) - self._owns
        if foreign:
            raise ValueError(f"{self._field_manager} does not own taint {':'.join(min(foreign))}")
        kept = []
        for taint in there:
            which = (taint.key, taint.effect)
            mine = put.pop(which, None)
            if mine is not None:
                kept.append(taint if taint.value == mine.value else mine)
            elif which not in change.drop:
                kept.append(taint)
        return (*kept, *put.values())
