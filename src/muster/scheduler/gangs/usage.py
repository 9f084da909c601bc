"""Counts the GPU-seconds that each user has used, with exponential decay.

The counts are in memory. A new leader computes them again from API objects: when the Placements of running gangs were
created, and when TrainingJobs that have ended began and ended. Deleted jobs are then forgotten.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping
from dataclasses import dataclass

from muster.api.names import ANNOTATION_SUBMITTER
from muster.api.training_job import TrainingJob
from muster.scheduler.gangs.accounts import Account, accounts_of
from muster.scheduler.gangs.gang import Gang, seconds
from muster.scheduler.gangs.priority import ENDED_PHASES
from muster.scheduler.pods.resources import gpus

HALF_LIFE_S = 86_400.0
ACCOUNTS_MAX = 10_000
"""Maximum number of accounts whose past usage is kept. Those with the least usage are dropped first."""
NO_GPU = 0.01
"""Weight of a pod without GPUs, so that there is also an order where no pod has GPUs."""
_NEGLIGIBLE = 1.0
"""Usage below this many GPU-seconds is dropped."""
_STARTED_S = 60.0
"""A gang that held nodes for less than this was not started: its Placement was not written, or its bind failed."""

QueueKey = frozenset[int]


@dataclass(slots=True)
class _Running:
    """Nodes that a gang holds: its weight since a time, and what was known about its user's last start."""

    accounts: tuple[Account, ...]
    weight: float
    since: float
    placed: object
    turn: tuple[Account, QueueKey] | None = None
    turn_before: float = 0.0
    began: float = 0.0


class Usage:
    """Usage of all accounts. It is a part of `ClusterState`."""

    def __init__(self) -> None:
        self._half_life_s = HALF_LIFE_S
        self._ended: list[tuple[tuple[Account, ...], float, float, float]] = []
        self.started: dict[tuple[Account, QueueKey], float] = {}
        """When the last gang of each user was started from each queue, except backfilled ones."""
        self._past: dict[Account, tuple[float, float]] = {}
        self._running: dict[str, _Running] = {}

    def look(self, gang: Gang, now: float) -> None:
        """Update what the gang holds, before it leaves its queue."""
        known = self._running.get(gang.key)
        if known is not None and gang.placed and known.placed is gang.placed:
            return  # the common case
        weight, certain = _weight(gang)
        if known is not None and known.weight == weight:
            return
        since, began = _held_since(gang, now) if known is None else now, now
        if known is not None:
            self._settle(known, now)
            del self._running[gang.key]
            began = known.began
            if not weight and known.turn is not None and now - began < _STARTED_S:
                self.started[known.turn] = known.turn_before
        if weight:
            placed = gang.placed if certain and gang.placed else None
            running = _Running(gang.accounts, weight, since, placed, began=began)
            if known is not None:
                running.turn, running.turn_before = known.turn, known.turn_before
            elif gang.queued_as is not None and not gang.backfilled:
                running.turn = (running.accounts[0], gang.queued_as[0])
                running.turn_before = self.started.get(running.turn, 0.0)
                self.started[running.turn] = now
            self._running[gang.key] = running

    def add_ended(self, job: TrainingJob, now: float) -> None:
        """Count a job that had ended before this process knew it, from its first start to its end.

        It counts from the next `set_half_life` on.
        """
        status = job.status
        began, ended = seconds(status.start_time), seconds(status.completion_time)
        if status.phase not in ENDED_PHASES or not 0 < began < ended:
            return
        weight = (status.size or job.spec.replicas) * (job.gpus or NO_GPU)
        accounts = accounts_of(job.namespace, job.metadata.annotations.get(ANNOTATION_SUBMITTER, ""))
        self._ended.append((accounts, weight, began, min(ended, now)))

    def set_half_life(self, half_life_s: float) -> None:
        """Set the time after which usage counts half as much. Usage that has decayed already stays as it is."""
        self._half_life_s = half_life_s
        for accounts, weight, began, ended in self._ended:
            for account in accounts:
                self._add(account, weight * self._decayed_s(ended - began), ended)
        self._ended.clear()

    def totals(self, now: float) -> Mapping[Account, float]:
        """Return the decayed GPU-seconds of each account, with the gangs that run now."""
        totals = {account: self._aged(used, at, now) for account, (used, at) in self._past.items()}
        for running in self._running.values():
            used = running.weight * self._decayed_s(now - running.since)
            for account in running.accounts:
                totals[account] = totals.get(account, 0.0) + used
        return totals

    def forget_old(self, now: float, turns_s: float) -> None:
        """Drop negligible usage, and starts longer ago than `turns_s`."""
        past = {account: (self._aged(used, at, now), now) for account, (used, at) in self._past.items()}
        past = {account: item for account, item in past.items() if item[0] >= _NEGLIGIBLE}
        if len(past) > ACCOUNTS_MAX:
            past = dict(heapq.nlargest(ACCOUNTS_MAX, past.items(), key=lambda item: (item[1][0], item[0])))
        self._past = past
        self.started = {turn: at for turn, at in self.started.items() if now - at < turns_s}

    def _settle(self, running: _Running, now: float) -> None:
        used = running.weight * self._decayed_s(now - running.since)
        for account in running.accounts:
            self._add(account, used, now)

    def _add(self, account: Account, used: float, at: float) -> None:
        known, known_at = self._past.get(account, (0.0, at))
        later = max(at, known_at)
        self._past[account] = (self._aged(known, known_at, later) + self._aged(used, at, later), later)

    def _decayed_s(self, span_s: float) -> float:
        """Return the integral of the decay over the last `span_s`: the seconds that still count."""
        return self._half_life_s / math.log(2.0) * (1.0 - math.exp2(-max(0.0, span_s) / self._half_life_s))

    def _aged(self, used: float, at: float, now: float) -> float:
        return used * math.exp2(-max(0.0, now - at) / self._half_life_s)


def weight_of(gang: Gang) -> float:
    """Return what the pending members of the gang would use: their GPUs."""
    return sum(count * (gpus(cls.request) or NO_GPU) for cls, count in gang.counts.items())


def _weight(gang: Gang) -> tuple[float, bool]:
    """Return what the gang uses, and whether the classes of all its slots are known."""
    if gang.placed:
        known = [gang.slot_class.get(slot) for slot in gang.placed]
        return sum(gpus(cls.request) or NO_GPU for cls in known if cls is not None), None not in known
    if len(gang.pending) == len(gang.current):
        return 0.0, True
    bound = [member.cls for member in gang.current.values() if member.node and member.cls is not None]
    return sum(gpus(cls.request) or NO_GPU for cls in bound), True


def _held_since(gang: Gang, now: float) -> float:
    """Return since when the gang holds nodes without a break, as API objects record it; `now` if they do not."""
    if gang.placement is not None:
        since = seconds(gang.placement.metadata.creation_timestamp)
    else:
        since = max((member.bound_since for member in gang.current.values()), default=0.0)
    return min(since or now, now)
