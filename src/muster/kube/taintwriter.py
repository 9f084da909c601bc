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
    """The node had the wanted state already, so nothing was written."""
    DECLINED = "Declined"
    """The node must not be changed in its present state."""
    GONE = "Gone"


class Written(msgspec.Struct, frozen=True):
    """The outcome, and the node at the API server afterwards; None if the node is gone."""

    outcome: Outcome
    node: Node | None


class TaintWriter:
    """Writes the taints of one owner, and the labels and annotations that go with them.

    Args:
        client: the API server.
        owns: the taints that this writer may set or remove. It never changes other taints.
        field_manager: name of the writer in the node's managedFields.
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
        """Apply the change that `wanted` returns for the node. After a conflict, read the node and call `wanted` again.

        Args:
            name: name of the node.
            wanted: returns the change for a node; None to leave the node unchanged.
            known: the node from a cache. If it is current, no read is needed.

        Raises:
            ApiError: the write was refused; Conflict if another writer was first at each try.
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
        """Return the merge patch with its precondition; None if the node has the wanted state."""
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
        # with the UID, because a node of the same name may have been created since
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
