"""Which nodes passed their tests, kept up to date by events, and how long ago, as far as any pod asks for that."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from muster.api.names import LABEL_PREFLIGHT
from muster.api.preflight import Preflight
from muster.api.trust import Doubt, Identity, Tested, doubt, has_gpus, identity, is_ignored, tested
from muster.kube.node import Node
from muster.kube.pod import Pod

if TYPE_CHECKING:
    from muster.scheduler.nodes.node_class import NodeRecord

HOUR_S: Final = 3600.0
NEEDS_NONE: Final = -1
"""In place of hours since the test: the node has no GPUs."""


class Trust:
    """The records of all nodes. Without such an object nodes need no tests."""

    def __init__(self) -> None:
        self.ages: frozenset[int] = frozenset()
        """Hours that pods ask for."""
        self._tested: dict[str, Tested] = {}
        self._due: list[tuple[float, str]] = []
        self._awaited: dict[str, float] = {}

    def set(self, record: Preflight) -> None:
        """A record was written."""
        self._tested[record.name] = tested(record.spec)

    def remove(self, name: str) -> None:
        """A node's record is gone."""
        self._tested.pop(name, None)

    def suppose(self, name: str, like: str) -> None:
        """A node that is not there did as well as one that is."""
        known = self._tested.get(like)
        if known is not None:
            self._tested[name] = Tested(Identity(name, "", known.identity.driver), known.passed, known.at)

    def take_over(self, record: NodeRecord, node: Node) -> None:
        """Note of a node what its record will be compared with."""
        gpus = has_gpus(record.allocatable, record.labels)
        record.gpus = gpus
        record.identity = identity(node) if gpus and not is_ignored(record.labels) else None

    def judge(self, record: NodeRecord) -> None:
        """Say whether the node is trusted."""
        known = self._tested.get(record.name)
        record.doubt = doubt(record.identity, known) if record.identity is not None else Doubt.NONE

    def age(self, record: NodeRecord, now: float) -> None:
        """Say within how many of the hours that pods ask for the node was tested: the least, 0 where in none."""
        record.tested_within_h = 0 if record.gpus else NEEDS_NONE
        known = self._tested.get(record.name)
        if not self.ages or not record.gpus or known is None or record.doubt or not _is_of(record, known):
            return
        for hours in sorted(self.ages):
            until = known.at + hours * HOUR_S
            if now < until:
                record.tested_within_h = hours
                if self._awaited.get(record.name) != until:  # nodes are touched with every pod that comes or goes
                    self._awaited[record.name] = until
                    heappush(self._due, (until, record.name))
                return

    def due(self, now: float) -> Iterator[str]:
        """Yield the nodes that may have been tested too long ago for some since the last time."""
        while self._due and self._due[0][0] <= now:
            until, name = heappop(self._due)
            if self._awaited.get(name) == until:
                del self._awaited[name]
            yield name


def _is_of(record: NodeRecord, known: Tested) -> bool:
    """Whether a record is the node's own: one that nobody tests may have an old one."""
    own = record.identity
    return own is not None and known.identity.node_uid == own.node_uid


def lean(record: Preflight) -> Preflight:
    """Return the record less what trust does not need: figures of every GPU of every node are most of it."""
    return replace(record, spec=replace(record.spec, versions={}, figures=(), failures=()))


def is_test(pod: Pod, namespace: str) -> bool:
    """Whether the pod tests its node; in another namespace than Muster's the label means nothing."""
    return LABEL_PREFLIGHT in pod.metadata.labels and pod.namespace == namespace
