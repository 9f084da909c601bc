"""Turns forecasts into intervals that hold as often as promised, and learns from forecasts that did not hold.

No simulation of a queue is exact: jobs come and fail, and users stop jobs. So the edges of the intervals are adapted
to their outcomes (adaptive conformal inference: Gibbs and Candes 2021, arXiv:2106.00170; each edge is a quantile that
is tracked by itself). A start after the interval moves the later edges up by 9 steps, and every other start moves them
down by one step. So in the long run, one start in ten is after its interval, whatever the errors of the simulation
are. The same applies to starts before the interval.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from muster.scheduler.forecast.simulation import HORIZON_S

PROBABILITY = 0.8
"""Share of the starts that are within their interval in the long run."""
_MISSES = (1 - PROBABILITY) / 2
"""Share of the starts before and after their interval."""
STEP = 0.15
"""How fast the edges adapt, in log-odds for each outcome of the less frequent kind."""
_START = math.log((1 - _MISSES) / _MISSES)
"""Positions of the edges before the first outcome, in log-odds: quantiles of 10% and 90%."""
_LIMIT = 7.0
"""Limit of a position. There, an edge is at least 10,000 times as late or early as the simulations say."""
_GROWTH = math.log(4)
"""Least growth of the logarithm of the wait from the median to the longest wait, where edges are beyond these."""
_FLOOR_S = 60.0
"""Added to waits before they are compared as ratios: with less, the difference does not matter to anyone."""


class StartInterval(msgspec.Struct, frozen=True):
    """The interval in which a gang starts with `PROBABILITY`, in seconds since the epoch.

    `latest` is None if the start may be later than can be known.
    """

    earliest: float
    latest: float | None = None

    def holds(self, start: float) -> bool:
        """Return whether a start is in the interval."""
        return self.earliest <= start and (self.latest is None or start <= self.latest)


class Calibration(msgspec.Struct, frozen=True):
    """The positions of the edges of intervals, and how many outcomes they rest on.

    Attributes:
        lower: position of the earlier edge, in log-odds; -log 9 is the quantile of 10%.
        upper: position of the later edge, in log-odds; log 9 is the quantile of 90%.
        outcomes: the number of outcomes.
        held: how many of these starts were in their interval.
    """

    lower: float = -_START
    upper: float = _START
    outcomes: int = 0
    held: int = 0

    def interval(self, waits_s: Sequence[float], now: float) -> StartInterval | None:
        """Return the interval for waits in ascending order; None if nothing is known about the start."""
        if not waits_s or waits_s[0] == math.inf:
            return None
        earliest_s, latest_s = (
            _quantile(waits_s, _level(self.lower)),
            _quantile(waits_s, _level(max(self.upper, self.lower))),
        )
        if earliest_s == math.inf:
            return None
        return StartInterval(now + earliest_s, now + latest_s if latest_s < math.inf else None)

    def after(self, given: StartInterval, start: float) -> Calibration:
        """Return the calibration after the gang with that interval started.

        A gang that still waits after its interval counts with the present time.
        """
        early = start < given.earliest
        late = given.latest is not None and start > given.latest
        return Calibration(
            lower=_limited(self.lower - STEP * (early - _MISSES)),
            upper=_limited(self.upper + STEP * (late - _MISSES)),
            outcomes=self.outcomes + 1,
            held=self.held + (not early and not late),
        )


def _limited(position: float) -> float:
    return min(max(position, -_LIMIT), _LIMIT)


def _level(position: float) -> float:
    """Return the log-odds of the quantile for a position.

    Beyond the start, the log-odds grow exponentially, so that edges move fast both ways if the errors are large.
    """
    beyond = abs(position) - _START
    return math.copysign(_START + 2 * math.expm1(beyond / 2), position) if beyond > 0 else position


def _quantile(waits_s: Sequence[float], level: float) -> float:
    """Return the quantile at a level in log-odds.

    Beyond the shortest and the longest wait, the logarithm of the wait changes with the level as it does within them.
    """
    known = bisect_left(waits_s, math.inf)
    count = len(waits_s)
    position = (count + 1) / (1 + math.exp(-level)) - 1
    if position >= known - 1 and known < count:
        return math.inf
    if position <= 0 or position >= count - 1:
        edge = math.log(count)  # the level of the longest wait; that of the shortest is -edge
        logs = [math.log(waits_s[at] + _FLOOR_S) for at in (0, count // 2, count - 1)]
        if position <= 0:
            slope = max(logs[1] - logs[0], _GROWTH) / edge
            return max(0.0, math.exp(logs[0] + slope * (level + edge)) - _FLOOR_S)
        slope = max(logs[2] - logs[1], _GROWTH) / edge
        beyond_s = math.exp(logs[2] + slope * (level - edge)) - _FLOOR_S
        return beyond_s if beyond_s <= HORIZON_S else math.inf
    below = int(position)
    share = position - below
    return waits_s[below] * (1 - share) + waits_s[below + 1] * share
