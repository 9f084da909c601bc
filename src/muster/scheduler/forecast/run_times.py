"""Predicts how long gangs still run, from the run times of ended gangs that are like them.

A gang that was stopped, or that still runs, is a censored record: it would have run longer than its record says. The
Kaplan-Meier estimator uses such records (Kaplan and Meier 1958). One more gang exceeds the longest of n records with
probability 1 / (n + 1); the estimate is corrected for that. Beyond the longest record, the run time has a Pareto tail.
So the expected remaining time of a gang grows with the time for which it has run. A prediction is never a limit.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

import msgspec

from muster.scheduler.forecast.likeness import Likeness

RECORDS_MAX = 2000
"""Maximum number of records of ended gangs in a model; older ones are dropped."""
ENOUGH = 10
"""Minimum number of completed gangs for a prediction. An interval of 80% needs that many."""
_AT_RISK = 5
"""Minimum number of gangs that ran longer than the gang has run. With fewer, a wider group is used."""
_TAIL_SHARE = 10
"""The index of the tail is estimated from the longest 1 / `_TAIL_SHARE` of the records, at least from `_AT_RISK`."""
_INDEX_MIN, _INDEX_MAX = 0.5, 2.0
"""Limits of the index of the Pareto tail. With 1, a gang that has run t needs another t in half of all cases."""

Basis = Literal["Similar", "User", "Team", "Shape", "Cluster"]
"""The group of gangs on which a prediction rests.

`Similar`: the same namespace, user, name pattern and shape. `User`: the same user. `Team`: the same team and shape.
`Shape`: the same number of nodes and GPUs. `Cluster`: all gangs.
"""
_Key = tuple[object, ...]
_LEVELS: Sequence[tuple[Basis, Callable[[Likeness], _Key | None]]] = (
    (
        "Similar",
        lambda like: (
            (like.namespace, like.user, like.pattern, like.image, like.nodes, like.gpus)
            if like.pattern and like.image
            else None
        ),
    ),
    (
        "Similar",
        lambda like: (like.namespace, like.user, like.pattern, like.nodes, like.gpus) if like.pattern else None,
    ),
    ("User", lambda like: (like.namespace, like.user, like.nodes, like.gpus) if like.user else None),
    ("User", lambda like: (like.namespace, like.user) if like.user else None),
    ("Team", lambda like: (like.team, like.nodes, like.gpus) if like.team else None),
    ("Shape", lambda like: (like.nodes, like.gpus)),
    ("Cluster", lambda like: ()),
)
"""Groups of gangs, from the most specific to the widest. A function returns None for a gang without such a group."""


class EndedRun(msgspec.Struct, frozen=True):
    """One gang of the history.

    Attributes:
        likeness: what it has in common with similar gangs.
        run_s: for how many seconds it ran, in all its attempts together.
        completed: whether it ended by itself. Otherwise it was stopped, or still runs: `run_s` is a lower bound.
        ended_at: when it ended, or when it was last seen, in seconds since the epoch.
    """

    likeness: Likeness
    run_s: float
    completed: bool
    ended_at: float


class Distribution:
    """Distribution of the run times of a group of gangs.

    Args:
        records: (run time in seconds, whether the gang completed), in any order; at least one.
    """

    __slots__ = ("_ended", "_index", "_longest", "_shares", "_times", "completed", "count")

    def __init__(self, records: Iterable[tuple[float, bool]]) -> None:
        ordered = sorted((run_s, not completed) for run_s, completed in records)  # completed ones first among equals
        self.count = left = len(ordered)
        self.completed = sum(not censored for _, censored in ordered)
        self._ended = [run_s for run_s, _ in ordered]
        self._longest = max(self._ended[-1], 1.0)
        times, shares, survival = list[float](), list[float](), 1.0
        for run_s, censored in ordered:
            if not censored:
                survival *= left / (left + 1)
                if times and times[-1] == run_s:
                    shares[-1] = 1 - survival
                else:
                    times.append(run_s)
                    shares.append(1 - survival)
            left -= 1
        self._times, self._shares = times, shares
        self._index = _tail_index(ordered)

    def longer_than(self, run_s: float) -> int:
        """Return how many gangs ran longer."""
        return self.count - bisect_right(self._ended, run_s)

    def survival(self, run_s: float) -> float:
        """Return the probability that a gang runs longer."""
        at = bisect_right(self._times, run_s)
        share = self._shares[at - 1] if at else 0.0
        if run_s <= self._longest:
            return 1.0 - share
        return (1.0 - share) * math.pow(run_s / self._longest, -self._index)

    def exceeded_by(self, survival: float, than_s: float) -> float:
        """Return the run time that a gang exceeds with this probability.

        `than_s` is a shorter run time. The result is inf for the probability 0.
        """
        at = bisect_left(self._shares, 1.0 - survival)
        if at < len(self._times):
            return max(self._times[at], than_s)
        if survival <= 0.0:
            return math.inf
        least = 1.0 - self._shares[-1] if self._shares else 1.0
        try:
            beyond_s = self._longest * math.pow(max(1.0, least / survival), 1 / self._index)
        except OverflowError:
            return math.inf
        return max(beyond_s, than_s)


def _tail_index(ordered: Sequence[tuple[float, bool]]) -> float:
    """Return the index of the Pareto tail: Hill's estimator, with the censored records in the numerator left out."""
    count = min(len(ordered), max(_AT_RISK, len(ordered) // _TAIL_SHARE))
    base_s = max(ordered[-count][0], 1.0)
    logs = sum(math.log(max(run_s, base_s) / base_s) for run_s, _ in ordered[-count:])
    ends = sum(not censored for _, censored in ordered[-count:])
    return min(max(ends / logs, _INDEX_MIN), _INDEX_MAX) if logs else _INDEX_MAX


class Remaining:
    """Distribution of the time that a gang still runs.

    Attributes:
        jobs: the number of gangs on which it rests.
        basis: the group of these gangs.
    """

    __slots__ = ("_distribution", "_ran_s", "_survival", "basis", "jobs")

    def __init__(self, distribution: Distribution, basis: Basis, ran_s: float) -> None:
        self.jobs, self.basis = distribution.count, basis
        self._distribution, self._ran_s = distribution, ran_s
        self._survival = distribution.survival(ran_s)

    def quantile(self, q: float) -> float:
        """Return the time in seconds within which the gang ends with probability `q`, 0 to 1; inf for 1."""
        return self._distribution.exceeded_by(self._survival * (1.0 - q), self._ran_s) - self._ran_s


class RunTimes:
    """Run times of ended gangs, by groups of gangs that are alike. It is immutable; groups are computed when needed.

    Args:
        ended: gangs that ended. Only the newest `RECORDS_MAX` count.
        running: gangs that still run, as records that are not completed. Without them, a young history would have only
            short run times.
    """

    def __init__(self, ended: Iterable[EndedRun] = (), running: Iterable[EndedRun] = ()) -> None:
        records = [record for record in ended if math.isfinite(record.run_s)]
        if len(records) > RECORDS_MAX:
            records = sorted(records, key=lambda record: record.ended_at)[-RECORDS_MAX:]
        records += [record for record in running if math.isfinite(record.run_s)]
        self.records = len(records)
        self._alike: dict[Likeness, list[tuple[float, bool]]] = {}
        for record in records:
            self._alike.setdefault(record.likeness, []).append((max(0.0, record.run_s), record.completed))
        self._members: list[dict[_Key, list[Likeness]]] | None = None
        self._groups: dict[tuple[int, _Key], Distribution] = {}
        self._chains: dict[Likeness, Sequence[tuple[Basis, Distribution]]] = {}

    def remaining(self, likeness: Likeness, ran_s: float) -> Remaining | None:
        """Return the distribution of the remaining run time of a gang that has run for `ran_s` seconds.

        It rests on the most specific group with enough gangs that ran longer than `ran_s`. Returns None if
        the history has too few gangs. A negative time, from a clock that was set back, counts as 0.
        """
        chain = self._chains.get(likeness)
        if chain is None:
            chain = self._chains[likeness] = self._chain(likeness)
        if not chain:
            return None
        ran_s = max(0.0, ran_s)
        for basis, group in chain:
            if group.longer_than(ran_s) >= _AT_RISK:
                return Remaining(group, basis, ran_s)
        basis, group = chain[-1]
        return Remaining(group, basis, ran_s)

    def _chain(self, likeness: Likeness) -> Sequence[tuple[Basis, Distribution]]:
        """Return the groups of the gang that have enough members, the most specific one first."""
        if self._members is None:
            self._members = [_by_key(self._alike, key_of) for _, key_of in _LEVELS]
        chain: list[tuple[Basis, Distribution]] = []
        for level, (basis, key_of) in enumerate(_LEVELS):
            key = key_of(likeness)
            members = self._members[level].get(key, ()) if key is not None else ()
            if key is None or not members:
                continue
            group = self._groups.get((level, key))
            if group is None:
                group = Distribution(record for each in members for record in self._alike[each])
                self._groups[level, key] = group
            if group.completed >= ENOUGH:
                chain.append((basis, group))
        return chain


def _by_key(known: Iterable[Likeness], key_of: Callable[[Likeness], _Key | None]) -> dict[_Key, list[Likeness]]:
    groups: dict[_Key, list[Likeness]] = {}
    for likeness in known:
        key = key_of(likeness)
        if key is not None:
            groups.setdefault(key, []).append(likeness)
    return groups


NO_RUN_TIMES = RunTimes()
