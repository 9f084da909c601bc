"""Forecasts when waiting gangs start: simulates the queue several times, with run times drawn from the history.

All gangs of the queue share the simulations. The draws are fixed quantiles, in another order for each gang (Latin
hypercube sampling), so the same snapshot and time give the same forecast.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Sequence
from zlib import crc32

import msgspec

from muster.api.names import LABEL_POOL
from muster.scheduler.forecast.rooms import Board, States
from muster.scheduler.forecast.run_times import RunTimes
from muster.scheduler.forecast.simulation import Entrant, Holder, Scene, simulate
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.placement.ledger import fits
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.plan import Settings
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.queue.backfill import began_at, ends_at, would_end_at
from muster.scheduler.snapshot import Snapshot

WAITING_MAX = 200
"""Maximum number of waiting gangs with a forecast: the first in queue order."""
SAMPLES = 17
"""Number of simulations. It must be a prime number, so that each gang has every quantile once."""


class StartForecast(msgspec.Struct, frozen=True):
    """When a waiting gang starts, as found in each simulation.

    Attributes:
        waits_s: seconds from now until the start, in ascending order; inf if the gang did not start.
        jobs: the smallest number of ended jobs on which the prediction of a run time rests. It is 0 if no run time
            was predicted; then time limits determine the start.
        general: one of these predictions rests on all gangs of the cluster, because too few are like the gang.
    """

    waits_s: tuple[float, ...]
    jobs: int
    general: bool = False


def forecast_starts(
    snapshot: Snapshot, matcher: Matcher, now: float, settings: Settings, most: int = WAITING_MAX
) -> dict[str, StartForecast]:
    """Return the forecast of each waiting gang, by key, for at most `most` gangs.

    A gang that would not fit into the empty cluster has no forecast, nor has a gang that starts in less than half of
    the simulations. `now` is in seconds since the epoch.
    """
    simulations = StartSimulations(snapshot, matcher, now, settings, most)
    for number in range(SAMPLES):
        simulations.run(number)
    return simulations.forecasts()


class StartSimulations:
    """The simulations of one snapshot, which may change after this object was made.

    The simulations of a large cluster take a second together. So a caller can do other work between them.
    """

    def __init__(
        self, snapshot: Snapshot, matcher: Matcher, now: float, settings: Settings, most: int = WAITING_MAX
    ) -> None:
        gangs = _Gangs(snapshot, matcher, settings, most)
        self._waiting = gangs.waiting
        self._entrants = [gang.key for gang in gangs.entrants]
        self._scene = gangs.scene() if gangs.waiting else None
        self._draws = _Draws(snapshot.run_times, now)
        self._ends = [self._draws.until_end(gang) for gang in gangs.holders] if gangs.waiting else []
        self._runs = [self._draws.run(gang) for gang in gangs.entrants]
        self._starts: list[list[float]] = []

    def run(self, number: int) -> None:
        """Run one simulation; `number` is from 0 to `SAMPLES` - 1."""
        if self._scene is not None:
            ends, runs = [each[number] for each in self._ends], [each[number] for each in self._runs]
            self._starts.append(simulate(self._scene, ends, runs))

    def forecasts(self) -> dict[str, StartForecast]:
        """Return the forecasts by key, after all simulations."""
        found: dict[str, StartForecast] = {}
        for at, key in enumerate(self._entrants if self._waiting else ()):
            waits_s = tuple(sorted(sample[at] for sample in self._starts))
            if key in self._waiting and waits_s[SAMPLES // 2] < math.inf:
                found[key] = StartForecast(waits_s, self._draws.jobs, self._draws.general)
        return found


class _Draws:
    """Run times of gangs in each of the simulations, in seconds.

    Attributes:
        jobs: the smallest number of ended jobs on which a prediction rests; 0 before the first one.
        general: a prediction rests on all gangs of the cluster.
    """

    def __init__(self, model: RunTimes, now: float) -> None:
        self._model, self._now = model, now
        self.jobs, self.general = 0, False

    def until_end(self, gang: Gang) -> Sequence[float]:
        """Return in how many seconds a gang on nodes ends."""
        end = ends_at(gang)
        return self._draw(gang, ran_s(gang, self._now), end - self._now if end is not None else math.inf)

    def run(self, gang: Gang) -> Sequence[float]:
        """Return how long a waiting gang runs once it has started."""
        end = would_end_at(gang, self._now)
        return self._draw(gang, ran_s(gang, self._now), end - self._now if end is not None else math.inf)

    def _draw(self, gang: Gang, run_s: float, limit_s: float) -> Sequence[float]:
        limit_s = max(0.0, limit_s)
        remaining = self._model.remaining(gang.likeness, run_s) if gang.likeness is not None else None
        if remaining is None:
            return (limit_s,) * SAMPLES
        self.jobs = min(self.jobs or remaining.jobs, remaining.jobs)
        self.general = self.general or remaining.basis == "Cluster"
        number = crc32(gang.key.encode())
        step, first = 1 + number % (SAMPLES - 1), number // SAMPLES
        return [
            min(limit_s, remaining.quantile(((first + step * at) % SAMPLES + 0.5) / SAMPLES)) for at in range(SAMPLES)
        ]


def ran_s(gang: Gang, now: float) -> float:
    """Return for how many seconds the gang has run, in all its attempts; 0 if its clock was set back."""
    before_s = gang.job.ran_s if gang.job is not None else 0.0
    began = began_at(gang)
    return before_s + (max(0.0, now - began) if began else 0.0)


class _Gangs:
    """The gangs of a simulation.

    Attributes:
        waiting: keys of the waiting gangs.
        entrants: these gangs and the backfilled ones, in queue order.
        holders: gangs on nodes.
    """

    def __init__(self, snapshot: Snapshot, matcher: Matcher, settings: Settings, most: int) -> None:
        self._snapshot, self._matcher, self._settings = snapshot, matcher, settings
        self._capacity: dict[PodClass, int] = {}
        self._classes = {bucket.node_class.number: bucket.node_class for bucket in snapshot.buckets.values()}
        waiting: list[Gang] = []
        for gang in _in_order(snapshot):
            if len(waiting) == most:
                break
            if all(self._when_empty(cls) >= count for cls, count in gang.counts.items()):
                waiting.append(gang)
        self.waiting = {gang.key for gang in waiting}
        self.entrants = sorted([*waiting, *snapshot.backfilled.values()], key=lambda gang: gang.order)
        self.holders = [gang for gang in snapshot.gangs.values() if gang.holds or gang.placed or _is_bound(gang)]

    def _when_empty(self, cls: PodClass) -> int:
        known = self._capacity.get(cls)
        if known is None:
            known = self._capacity[cls] = sum(
                fits(cls, bucket) * len(bucket.names)
                for bucket in self._snapshot.empty_buckets.values()
                if self._matcher.match(cls, bucket.node_class).reason is None
            )
        return known

    def scene(self) -> Scene:
        """Return the beginning of the simulations."""
        snapshot = self._snapshot
        needs = [_needs(gang) for gang in self.entrants]
        wanted = {cls: at for at, cls in enumerate(dict.fromkeys(cls for each in needs for cls in each))}
        accepted = {
            number: [at for cls, at in wanted.items() if self._matcher.match(cls, node_class).reason is None]
            for number, node_class in self._classes.items()
        }
        states = States(list(wanted), accepted)
        nodes: dict[str, int] = {}
        state: list[int] = []
        for bucket in snapshot.buckets.values():
            number = states.of(bucket.node_class.number, bucket.free)
            for name in bucket.names:
                nodes[name] = len(state)
                state.append(number)
        everything = Board(states, state, len(wanted))
        firm = everything.copy()
        at_of = {gang.key: at for at, gang in enumerate(self.entrants)}
        holders = []
        for gang in self.holders:
            by_request: dict[int, list[int]] = {}
            for name, cls in gang.takes():
                if name in nodes:
                    by_request.setdefault(states.request(cls), []).append(nodes[name])
            takes = tuple(by_request.items())
            backfilled = gang.key in snapshot.backfilled
            holders.append(Holder(takes, at_of[gang.key] if backfilled else -1))
            if backfilled:
                for request, places in takes:
                    firm.move(places, ~request)
        queues: dict[frozenset[int], int] = {}
        kinds: dict[frozenset[tuple[int, int]], int] = {}
        entrants = []
        for gang, each in zip(self.entrants, needs, strict=True):
            sizes = frozenset((wanted[cls], count) for cls, count in each.items())
            usable = sum(
                1 << states.domains[number]
                for number, positions in accepted.items()
                if any(wanted[cls] in positions for cls in each)
            )
            entrants.append(
                Entrant(
                    queue=queues.setdefault(frozenset(at for at, _ in sizes), len(queues)),
                    kind=kinds.setdefault(sizes, len(kinds)),
                    needs=tuple((wanted[cls], states.request(cls), count) for cls, count in each.items()),
                    usable=usable,
                    restartable=gang.restartable and gang.times_asked < self._settings.backfill_asks_max,
                    runs=gang.key not in self.waiting,
                )
            )
        strict = sum(
            1 << states.domains[number]
            for number, node_class in self._classes.items()
            if self._settings.policy_of(node_class.labels.get(LABEL_POOL, "")) != "preemptible"
        )
        return Scene(everything, firm, entrants, holders, strict)


def _needs(gang: Gang) -> dict[PodClass, int]:
    """Return the number of pods of each class that the gang has or needs."""
    if gang.pending:
        return dict(gang.counts)
    counts: dict[PodClass, int] = {}
    for _, cls in gang.takes():
        counts[cls] = counts.get(cls, 0) + 1
    return counts


def _is_bound(gang: Gang) -> bool:
    return any(pod.counted_on for pod in gang.pods.values())


def _in_order(snapshot: Snapshot) -> Iterator[Gang]:
    """Yield the waiting gangs of all queues in queue order."""

    def gangs(at: int) -> Iterable[Gang]:
        queue = queues[at]
        return (queue[index] for index in range(len(queue)))

    queues = list(snapshot.queues.values())
    return heapq.merge(*(gangs(at) for at in range(len(queues))), key=lambda gang: gang.order)
