"""Computes when a waiting gang starts, from time limits, and which gangs may use its nodes until then (EASY backfill).

A gang ends when its limit and then the grace period of its pods have passed. The timeLimitSeconds of a TrainingJob
counts from its first start, across restarts. In other gangs every pod needs activeDeadlineSeconds, which counts from
the pod's start (Kubernetes: PodSpec). Without a limit, the end of a gang is unknown.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from muster.scheduler.gangs.gang import Gang, seconds
from muster.scheduler.nodes.node_record import NodeRecord
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.placement.place import Groups
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.resources import times_fits
from muster.scheduler.snapshot import Snapshot

START_SLACK_S = 60.0
"""From placed to running: images, volumes, rendezvous. If a gang takes longer, it ends that much later."""


class Start(msgspec.Struct, frozen=True):
    """Time range in which a waiting gang starts, in seconds since the epoch.

    It holds if nothing fails and no other gang overtakes it. `latest` follows from the time limits of the gangs that
    it waits for. They may end at any moment before, so `earliest` is the time of the plan.
    """

    earliest: float
    latest: float


def ends_at(gang: Gang) -> float | None:
    """Return when a gang that holds nodes has left them at the latest; None without a limit.

    A gang that ended and only keeps slots releases them with the next write. Its time is 0, which is always past.
    """
    if gang.ended and not any(pod.counted_on for pod in gang.pods.values()):
        return 0.0
    limit_s = gang.limit_s
    if limit_s is None:
        return None
    if gang.job is not None:
        began = gang.job.started_at or _ready_by(gang)
        return began + limit_s + gang.job.grace_s if began else None
    began = _ready_by(gang)
    return began + limit_s + gang.traits.grace_s if began else None


def began_at(gang: Gang) -> float:
    """Return when the gang was bound, in seconds since the epoch; 0 if unknown."""
    if gang.placement is not None:
        return seconds(gang.placement.status.bound_time)
    return max((member.bound_since for member in gang.current.values()), default=0.0)


def _ready_by(gang: Gang) -> float:
    """Return the estimated time at which it runs, from when it was bound; 0 if unknown."""
    if gang.placement is not None:
        moment = gang.placement.status.bound_time or gang.placement.spec.bind_deadline
        return moment.timestamp() + START_SLACK_S if moment is not None else 0.0
    bound = max((member.bound_since for member in gang.current.values()), default=0.0)
    return bound + START_SLACK_S if bound else 0.0


def would_end_at(gang: Gang, now: float) -> float | None:
    """Return when the gang would leave its nodes if it got them now; None without a limit."""
    limit_s = gang.limit_s
    if limit_s is None:
        return None
    if gang.job is None:
        return now + START_SLACK_S + limit_s + gang.traits.grace_s
    return (gang.job.started_at or now + START_SLACK_S) + limit_s + gang.job.grace_s


_ByClass = Mapping[str, Mapping[PodClass, int]]


class KnownGains(msgspec.Struct, frozen=True):
    """Memo of `Gains`, by gang and pod class; `at` is the position in the journal of changed gangs."""

    at: int = 0
    ends: _ByClass = {}
    empty: _ByClass = {}


NO_GAINS = KnownGains()


class Gains:
    """Computes the room that the end of each gang frees, once until something changes on its nodes.

    Args:
        snapshot: the cluster.
        matcher: matches pods to nodes.
        known: gains of an earlier snapshot.
    """

    def __init__(self, snapshot: Snapshot, matcher: Matcher, known: KnownGains) -> None:
        self._snapshot, self._matcher, self._before = snapshot, matcher, known
        self._used = False
        self._ends: dict[str, Mapping[PodClass, int]] = {}
        self._empty: dict[str, Mapping[PodClass, int]] = {}

    @property
    def known(self) -> KnownGains:
        """The gains, for the next snapshot. This object must not be used afterwards."""
        return KnownGains(self._snapshot.changed_gangs.end, self._ends, self._empty) if self._used else self._before

    def of(self, gang: Gang, cls: PodClass) -> int:
        """Return how many more pods of the class fit once the gang and all that end before it are gone."""
        if not self._used:
            self._load()
        known = self._ends.get(gang.key)
        gain = known.get(cls) if known is not None else None
        if gain is None:
            gain = sum(self._room_after(self._snapshot.nodes[name], gang, cls) for name in nodes_of(gang))
            self._ends[gang.key] = {**(known or {}), cls: gain}
        return gain

    def serving(self, gang: Gang, cls: PodClass) -> int:
        """Return how many pods of the class would fit on the gang's nodes if these were empty."""
        if not self._used:
            self._load()
        known = self._empty.get(gang.key)
        count = known.get(cls) if known is not None else None
        if count is None:
            count = sum(self._room_empty(self._snapshot.nodes[name], cls) for name in nodes_of(gang))
            self._empty[gang.key] = {**(known or {}), cls: count}
        return count

    def _load(self) -> None:
        """Copy what is known of gangs without changes."""
        self._used = True
        changed = self._snapshot.changed_gangs.since(self._before.at)
        if changed is None:
            return
        gangs = self._snapshot.gangs
        self._ends = {key: known for key, known in self._before.ends.items() if key in gangs}
        self._empty = {key: known for key, known in self._before.empty.items() if key in gangs}
        for key in changed:
            self._ends.pop(key, None)
            self._empty.pop(key, None)

    def _room_empty(self, node: NodeRecord, cls: PodClass) -> int:
        if node.node_class is None or not self._matcher.match(cls, node.node_class).serves(node.name):
            return 0
        times = times_fits(cls.request, node.free_when_empty())
        return min(times, 1) if cls.alone else times

    def _room_after(self, node: NodeRecord, gang: Gang, cls: PodClass) -> int:
        """Return the room gained on the node, if the gang is the last on it to end and all others end too."""
        if node.node_class is None or not self._matcher.match(cls, node.node_class).serves(node.name):
            return 0
        mine = (ends_at(gang) or 0.0, gang.key)
        for key in occupants(self._snapshot, node):
            other = self._snapshot.gangs[key]
            end = ends_at(other)
            if end is None or (end, key) > mine:
                return 0
        empty, free = times_fits(cls.request, node.free_when_empty()), times_fits(cls.request, node.free())
        most = 1 if cls.alone else empty
        return min(empty, most) - min(free, most)


def nodes_of(gang: Gang) -> set[str]:
    """Return the nodes on which the gang has pods or reserved slots."""
    held = {node for node, _ in gang.holds.values()}
    return held | {pod.counted_on for pod in gang.pods.values() if pod.counted_on}


def occupants(snapshot: Snapshot, node: NodeRecord) -> set[str]:
    """Return the keys of the gangs that have pods or reserved slots on the node."""
    keys = {snapshot.pods[uid].gang for uid in node.pods if uid in snapshot.pods}
    keys.update(key for key, _ in node.holds)
    return {key for key in keys if key in snapshot.gangs}


def start_of(
    snapshot: Snapshot, gains: Gains, groups: Groups, room: Mapping[PodClass, int], now: float
) -> Start | None:
    """Return when there is room for all the slots at the latest; None if limits do not determine it.

    `room` is how many pods of each class fit now. Classes are counted one by one. Nodes shared with gangs that never
    end do not count. With several classes the result may be too early. That blocks backfill, but never the gang.
    """
    missing = {cls: len(slots) - room[cls] for cls, slots in groups.items()}
    for end, key in snapshot.ending:
        gang = snapshot.gangs[key]
        for cls in missing:
            missing[cls] -= gains.of(gang, cls)
        if all(count <= 0 for count in missing.values()):
            return Start(now, max(now, end))
    return None
