"""Snapshot: the state that decide and explain read. Readers must not change it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from muster.scheduler.forecast.run_times import RunTimes
from muster.scheduler.gangs.adapters import SOURCES
from muster.scheduler.gangs.adapters.membership import gang_key
from muster.scheduler.gangs.budgets import Budgets
from muster.scheduler.gangs.gang import Gang, Order, PodRecord
from muster.scheduler.nodes.buckets import BucketIndex
from muster.scheduler.nodes.node_record import NodeRecord
from muster.scheduler.persistent import Journal
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.preemption.searches import FailedSearch

QueueKey = frozenset[int]
"""Numbers of the pod classes of a gang's pending members. Gangs of one queue compete for the same nodes."""


class Queue(Protocol):
    """Complete gangs without a placement that have the same pod classes, in queue order."""

    key: QueueKey

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Gang: ...

    def position(self, order: Order) -> int:
        """Return how many gangs of this queue are before `order`."""
        ...

    def limited_after(self, order: Order) -> Iterator[Gang]:
        """Yield the gangs after `order` that have a time limit."""
        ...

    def candidates_after(self, order: Order) -> list[Iterator[Gang]]:
        """Return the gangs after `order` that may be backfilled: an iterator in order for each kind that fits alike."""
        ...


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster as decide sees it. It references live indexes, so it is valid until the next event is applied.

    Attributes:
        buckets: nodes by class and free room; `empty_buckets` by the room without any gang.
        attention: gangs with a placement that may need an action, by key.
        waiting: gangs that are not ready to be placed (pods missing, refused, gated), by key.
        holding: gangs that have pods or reserved slots on nodes, by key.
        movable: gangs on nodes that can be asked to leave, or were, by priority and key.
        ending: (end, key) of gangs on nodes with a time limit, the first to end first.
        joining: bound gangs with pending pods beyond their minimum, by the classes of those.
        shown: keys of the gangs whose pods show a demand to autoscalers.
        stopping: pods on nodes that are being deleted, by UID.
        giving_up: (node, slot) pairs that are reserved only until a write in flight has ended, by the gang's key.
        budgets: disruption budgets for evictions.
        searches: recent searches for victims that found none, by the key of the gang that needs the room.
        owners: team of each node that has one.
        borrowing: the borrowers in `movable`, by key.
        backfilled: gangs in `movable` that were backfilled, by key.
        changed_gangs: gangs that changed, and those on nodes that changed.
        run_times: run times of ended gangs, for predictions.
        team_key: key of the taint of nodes that a team owns.
        pools: whether some nodes are in pools, so that pods that request devices may use only these.
        epoch: another object once node classes or `pools` changed as a whole.
        classes: pod classes in use when unused ones were last dropped; another object each time.
        gangs_by_name: keys of the gangs of each `namespace/name`; several if a job was recreated.
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
    holding: Mapping[str, Gang]
    movable: Mapping[int, Mapping[str, Gang]]
    ending: Sequence[tuple[float, str]]
    joining: Mapping[QueueKey, Queue]
    shown: Collection[str]
    stopping: Mapping[str, PodRecord]
    giving_up: Mapping[str, Sequence[tuple[str, int]]]
    budgets: Budgets
    searches: Mapping[str, FailedSearch]
    owners: Mapping[str, str]
    borrowing: Mapping[str, Gang]
    backfilled: Mapping[str, Gang]
    changed_gangs: Journal
    run_times: RunTimes
    team_key: str
    pools: bool
    epoch: object
    classes: Collection[PodClass]

    def find(self, namespace: str, name: str) -> Gang | None:
        """Return the newest gang of that name, or the single pod of that name."""
        keys = self.gangs_by_name.get(f"{namespace}/{name}") or {gang_key(namespace, name, "")}
        gangs = [self.gangs[key] for key in keys if key in self.gangs]
        return max(gangs, key=lambda gang: (bool(gang.current), gang.arrival, gang.key), default=None)

    def find_workload(self, namespace: str, name: str) -> Gang | None:
        """Return the gang of that name, or that of the Job, StatefulSet, PodGroup, ... of that name."""
        found = (self.find(namespace, each) for each in (name, *(f"{source}.{name}" for source in SOURCES)))
        return next((gang for gang in found if gang is not None), None)
