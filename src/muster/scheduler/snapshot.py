"""What decide and explain read: the state at one moment. Nothing in it may be changed by its readers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from muster.scheduler.gangs.adapters import SOURCES
from muster.scheduler.gangs.adapters.membership import gang_key
from muster.scheduler.gangs.budgets import Budgets
from muster.scheduler.gangs.gang import Gang, Order, PodRecord
from muster.scheduler.nodes.buckets import BucketIndex
from muster.scheduler.nodes.node_class import NodeRecord
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.placement.memo import Refusals
from muster.scheduler.preemption.memo import Vain
from muster.scheduler.queue.backfill import Gains

QueueKey = frozenset[int]
"""The numbers of the pod classes of a gang's pending members: gangs of one queue compete for the same nodes."""


class Queue(Protocol):
    """Complete gangs without a placement that consist of the same pod classes, in queue order."""

    key: QueueKey

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Gang: ...

    def position(self, order: Order) -> int:
        """Return how many gangs of this queue are before `order`."""
        ...

    def limited_after(self, order: Order) -> Iterator[Gang]:
        """Yield the gangs after `order` that have a time limit."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster as decide sees it. References live indexes: valid until the next event is applied.

    Attributes:
        buckets: nodes by class and room left; `empty_buckets` by the room left without any gang.
        attention: gangs with a placement on which something may have to be done, by key.
        waiting: gangs that are not ready to be placed (pods missing, refused, gated), by key.
        movable: gangs on nodes that can be told to leave, or were, by priority and key.
        ending: (when it has ended, key) of gangs on nodes that have a time limit, the first to end first.
        gains: the room that each of those makes by ending.
        joining: bound gangs with pods beyond their minimum that have no node yet, by the classes of those.
        shown: keys of the gangs for which autoscalers see a demand.
        budgets: disruption budgets of those that leave by eviction.
        refusals: what was found about gangs with rules about other pods, until what it depends on changes.
        vain: for which gangs nobody leaves, as was found lately.
        owners: team of each node that a team owns.
        borrowing: those of `movable` that borrow, by key.
        gangs_by_name: keys of the gangs of each `namespace/name`; more than one where a job was made anew.
    """

    nodes: Mapping[str, NodeRecord]
    pods: Mapping[str, PodRecord]
    gangs: Mapping[str, Gang]
    gangs_by_name: Mapping[str, set[str]]
    buckets: BucketIndex
    empty_buckets: BucketIndex
    queues: Mapping[QueueKey, Queue]
    attention: Mapping[str, Gang]
    waiting: Mapping[str, Gang]
    movable: Mapping[int, Mapping[str, Gang]]
    ending: Sequence[tuple[float, str]]
    gains: Gains
    joining: Mapping[QueueKey, Queue]
    shown: Collection[str]
    matcher: Matcher
    refusals: Refusals
    budgets: Budgets
    vain: Vain
    owners: Mapping[str, str]
    borrowing: Mapping[str, Gang]

    def find(self, namespace: str, name: str) -> Gang | None:
        """Return the newest gang of that name, or the single pod of that name."""
        keys = self.gangs_by_name.get(f"{namespace}/{name}") or {gang_key(namespace, name, "")}
        gangs = [self.gangs[key] for key in keys if key in self.gangs]
        return max(gangs, key=lambda gang: (bool(gang.current), gang.arrival, gang.key), default=None)

    def find_workload(self, namespace: str, name: str) -> Gang | None:
        """Return the gang of that name, or that of the Job, StatefulSet, PodGroup, ... of that name."""
        found = (self.find(namespace, each) for each in (name, *(f"{source}.{name}" for source in SOURCES)))
        return next((gang for gang in found if gang is not None), None)
