"""Tracks which nodes passed their tests, and how long ago if a pod requires that."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final

from muster.api.preflight import Preflight
from muster.api.trust import Doubt, Identity, Tested, doubt, has_gpus, identity, is_ignored, tested
from muster.kube.objects.node import Node
from muster.scheduler.nodes.node_class import NEEDS_NONE
from muster.scheduler.nodes.node_record import NodeRecord

HOUR_S: Final = 3600.0


class Trust:
    """Test records of all nodes. Without this object, nodes need no tests."""

    def __init__(self) -> None:
        self.ages: frozenset[int] = frozenset()
        """Maximum test ages in hours that pods require."""
        self._tested: dict[str, Tested] = {}
        self._due: list[tuple[float, str]] = []
        self._awaited: dict[str, float] = {}

    def set(self, record: Preflight) -> None:
        """Add or update a record."""
        self._tested[record.name] = tested(record.spec)

    def remove(self, name: str) -> None:
        """Remove the record of a node."""
        self._tested.pop(name, None)

    def suppose(self, name: str, like: str) -> None:
        """Assume for a hypothetical node the record of an existing one."""
        known = self._tested.get(like)
        if known is not None:
            self._tested[name] = Tested(Identity(name, "", known.identity.driver), known.passed, known.at)

    def take_over(self, record: NodeRecord, node: Node) -> None:
        """Set the identity of the node that its record must match."""
        gpus = has_gpus(record.allocatable, record.labels)
        record.gpus = gpus
        record.identity = identity(node) if gpus and not is_ignored(record.labels) else None

    def judge(self, record: NodeRecord) -> None:
        """Set whether the node is trusted."""
        known = self._tested.get(record.name)
        record.doubt = doubt(record.identity, known) if record.identity is not None else Doubt.NONE

    def age(self, record: NodeRecord, now: float) -> None:
        """Set the smallest required test age, in hours, that the node meets; 0 if it meets none."""
        record.tested_within_h = 0 if record.gpus else NEEDS_NONE
        known = self._tested.get(record.name)
        if not self.ages or not record.gpus or known is None or record.doubt or not _is_of(record, known):
            return
        for hours in sorted(self.ages):
            until = known.at + hours * HOUR_S
            if now < until:
                record.tested_within_h = hours
                if self._awaited.get(record.name) != until:  # nodes are touched with every pod event
                    self._awaited[record.name] = until
                    heappush(self._due, (until, record.name))
                return

    def due(self, now: float) -> Iterator[str]:
        """Yield the nodes whose test may have become too old for some pods since the last call."""
        while self._due and self._due[0][0] <= now:
            until, name = heappop(self._due)
            if self._awaited.get(name) == until:
                del self._awaited[name]
            yield name


def _is_of(record: NodeRecord, known: Tested) -> bool:
    """Return whether the record belongs to this node; an untested node may have a record of an old one."""
    own = record.identity
    return own is not None and known.identity.node_uid == own.node_uid
