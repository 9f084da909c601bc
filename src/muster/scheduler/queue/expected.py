"""Estimates when running gangs end and when nodes become free, from the run times of gangs that ended.

The estimates decide only which nodes a waiting gang reserves, which other gangs may use these until then, and which
pods share a node. They are never limits: no gang ends because it was expected to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from math import inf

import msgspec

from muster.scheduler.gangs.gang import Gang
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.placement.place import Groups
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.resources import times_fits
from muster.scheduler.queue.backfill import began_at, ends_at, nodes_of, occupants
from muster.scheduler.snapshot import Snapshot

RUNNING_QUANTILE = 0.5
"""Running gangs are expected to end at this quantile of their run time."""
STARTING_QUANTILE = 0.9
"""A gang that starts is expected to have ended at this quantile of its run time."""
_STEP = 1.25
_FIRST_STEP_S = 60.0


class Free(msgspec.Struct, frozen=True):
    """When a node is expected to be free, and from when until when this estimate is used."""

    at: float
    since: float
    until: float


class KnownExpected(msgspec.Struct, frozen=True):
    """Memo of `Expected`.

    Attributes:
        position: in the journal of changed gangs.
        run_times: the run times on which the estimates rest.
        free: estimates of nodes, by name.
    """

    position: int = 0
    run_times: object = None
    free: Mapping[str, Free] = {}


NOTHING_EXPECTED = KnownExpected()


class Expected:
    """The estimates of one plan. Each is computed when it is first needed.

    An estimate for a running gang depends on how long it has run, in steps. So it stays valid for some time.

    Args:
        snapshot: the cluster.
        matcher: matches pods to nodes.
        now: seconds since the epoch.
        known: estimates of an earlier plan.
    """

    def __init__(self, snapshot: Snapshot, matcher: Matcher, now: float, known: KnownExpected) -> None:
        self._snapshot, self._matcher, self._now, self._before = snapshot, matcher, now, known
        self._free: dict[str, Free] | None = None
        self._in_order: list[tuple[float, str]] | None = None
        self._gains: dict[PodClass, dict[str, int]] = {}

    @property
    def known(self) -> KnownExpected:
        """The estimates, for the next plan. This object must not be used afterwards."""
        if self._free is None:
            return self._before
        return KnownExpected(self._snapshot.changed_gangs.end, self._snapshot.run_times, self._free)

    def run_s(self, gang: Gang) -> float:
        """Return how long a gang that starts now is expected to run at most; infinite if that is unknown."""
        return self._remaining_s(gang, 0.0, STARTING_QUANTILE)

    def nearest_end(self, gang: Gang) -> Callable[[str], tuple[bool, float]]:
        """Return a sort key of nodes for a gang that starts now, so that whole nodes are free sooner.

        Nodes that stay in use longer than the gang come first, the one that is free first before others. Then come
        nodes that the gang would keep in use, for the shortest time first.
        """
        end = self._now + self._remaining_s(gang, 0.0, RUNNING_QUANTILE)

        def key(name: str) -> tuple[bool, float]:
            free = self.free_at(name)
            return (free < end, abs(free - end) if free < inf or end < inf else 0.0)

        return key

    def free_at(self, name: str) -> float:
        """Return when the node is expected to be free; infinite if that is unknown."""
        found = self._all().get(name)
        return max(found.at, self._now) if found is not None else self._now

    def start_of(self, groups: Groups, missing: Mapping[PodClass, int], beside: Collection[str] = ()) -> float:
        """Return when room for the missing pods is expected, without nodes `beside`; infinite if that is unknown.

        Classes are counted one by one, so with several classes the result may be too early.
        """
        start = self._now
        for cls in groups:
            left = missing[cls]
            for at, _, gain in self.openings(cls, beside) if left > 0 else ():
                left -= gain
                if left <= 0:
                    start = max(start, at)
                    break
            if left > 0:
                return inf
        return start

    def first_free(self, cls: PodClass, count: int, beside: Collection[str] = ()) -> set[str] | None:
        """Return the nodes expected to have room first for `count` more pods; None if that is unknown."""
        names = set[str]()
        for at, name, gain in self.openings(cls, beside) if count > 0 else ():
            if at == inf:
                break
            names.add(name)
            count -= gain
            if count <= 0:
                break
        return names if count <= 0 else None

    def openings(self, cls: PodClass, beside: Collection[str] = ()) -> Iterator[tuple[float, str, int]]:
        """Yield (time, node, number of pods) for nodes that will take more pods of the class, by time."""
        if self._in_order is None:
            self._in_order = sorted((max(free.at, self._now), name) for name, free in self._all().items())
        gains = self._gains.setdefault(cls, {})
        for at, name in self._in_order:
            if name in beside:
                continue
            gain = gains.get(name)
            if gain is None:
                gain = gains[name] = self._gain(cls, name)
            if gain:
                yield at, name, gain

    def _gain(self, cls: PodClass, name: str) -> int:
        """Return how many more pods of the class fit on the node once all gangs on it have ended."""
        node = self._snapshot.nodes.get(name)
        if node is None or node.fully_held or node.node_class is None:
            return 0
        if not self._matcher.match(cls, node.node_class).serves(name):
            return 0
        most = 1 if cls.alone or cls.ports else 1 << 30
        empty, free = times_fits(cls.request, node.free_when_empty()), times_fits(cls.request, node.free())
        return max(0, min(empty, most) - min(free, most))

    def _all(self) -> Mapping[str, Free]:
        if self._free is None:
            before, snapshot = self._before, self._snapshot
            changed = snapshot.changed_gangs.since(before.position) if before.run_times is snapshot.run_times else None
            if changed is None:
                self._free, stale = {}, [name for name, node in snapshot.nodes.items() if node.pods or node.holds]
            else:
                self._free = dict(before.free)
                gangs = (snapshot.gangs[key] for key in changed if key in snapshot.gangs)
                stale = [name for gang in gangs for name in nodes_of(gang)]
                now = self._now
                stale += [name for name, free in self._free.items() if not free.since <= now < free.until]
            for name in stale:
                self._look_at(name)
        return self._free

    def _look_at(self, name: str) -> None:
        assert self._free is not None
        node = self._snapshot.nodes.get(name)
        ends = [self._end_of(self._snapshot.gangs[key]) for key in occupants(self._snapshot, node)] if node else ()
        if not ends:
            self._free.pop(name, None)
            return
        self._free[name] = Free(
            max(end.at for end in ends), max(end.since for end in ends), min(end.until for end in ends)
        )

    def _end_of(self, gang: Gang) -> Free:
        """Return when a gang that holds nodes is expected to leave them; infinite if that is unknown.

        A time limit counts if it ends the gang earlier. Backfilled gangs leave when they are asked.
        """
        if gang.backfilled:
            return Free(0.0, -inf, inf)
        limit, began = ends_at(gang), began_at(gang)
        most = inf if limit is None else limit
        if not began or most <= self._now:
            return Free(most, -inf, inf) if most < inf else Free(inf, -inf, inf)
        since_s, until_s = _step(self._now - began)
        end = began + since_s + self._remaining_s(gang, since_s, RUNNING_QUANTILE)
        return Free(min(most, end), began + since_s if since_s else -inf, began + until_s)

    def _remaining_s(self, gang: Gang, ran_s: float, quantile: float) -> float:
        assert gang.likeness is not None, "snapshots describe every gang"
        found = self._snapshot.run_times.remaining(gang.likeness, ran_s)
        return found.quantile(quantile) if found is not None else inf


def _step(ran_s: float) -> tuple[float, float]:
    """Return the step that contains a run time: its start and its end, in seconds."""
    start, end = 0.0, _FIRST_STEP_S
    while ran_s >= end:
        start, end = end, end * _STEP
    return start, end
