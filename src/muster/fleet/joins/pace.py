"""Computes how many nodes to open in each period: one more if the API server has room, half if it is overloaded.

This is additive increase, multiplicative decrease, as in TCP congestion control (RFC 5681). Joins use the capacity
that other load leaves, and slow down first. The pace is never below one node per period. So every node joins in the
end, even if requests of other clients are refused all the time.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from muster.fleet.joins.scrape import Signals

STEP = 1.0
"""Added to the pace, in nodes per period, after a period that used the whole pace while there was room."""
BACK_OFF = 0.5
"""Factor of the pace after a period in which the API server was overloaded."""
LEAST = 1.0
"""The lowest pace in nodes per period: every node joins in the end."""
REFUSED_SHARE_MAX = 0.001
"""Highest share of requests answered with 429. One client that asks too often is not an overload; one in a thousand
requests is."""
SLOW_S = 1.0
"""Limit for the 99th percentile of requests for single objects (Kubernetes' API call latency SLO, SIG Scalability)."""
STRAINED_S = SLOW_S / 2
BUSY_MAX = 0.8
"""Share of the API server's seats in use above which the pace does not grow."""
HORIZON_S = 120.0
"""An autoscaler may have as many nodes on their way as can be opened within this time."""


class Verdict(StrEnum):
    """The judgement of the API server's load. Values are in metrics and in Events: never rename one."""

    ROOM = "Room"
    STRAINED = "Strained"
    OVERLOADED = "Overloaded"
    UNKNOWN = "Unknown"


class Cause(StrEnum):
    """The cause of a verdict. Values are in the ConfigMap's annotation and must not change."""

    NONE = "None"
    REFUSED = "RequestsRefused"
    SLOW = "RequestsSlow"
    SEATS = "SeatsInUse"
    QUEUED = "RequestsQueued"
    NO_ANSWER = "NoAnswer"
    UNREADABLE = "MetricsUnreadable"


class Judgement(msgspec.Struct, frozen=True):
    """The verdict on the API server's load, its cause, and a text for people."""

    verdict: Verdict
    cause: Cause
    why: str


class Bounds(msgspec.Struct, frozen=True):
    """The pace at the start and at most, in nodes per period, and the length of a period."""

    start: int = 5
    most: int = 50
    period_s: float = 5.0


class Pace(msgspec.Struct, frozen=True):
    """The number of nodes that may be opened in a period, and the reason."""

    nodes: float
    verdict: Verdict = Verdict.UNKNOWN
    why: str = "nothing is known of the API server yet"
    cause: Cause = Cause.NONE

    @property
    def allowance(self) -> int:
        """The pace in whole nodes."""
        return int(self.nodes)


def judge(signals: Signals) -> Judgement:
    """Return what the API server can take, and why."""
    if signals.refused > REFUSED_SHARE_MAX * signals.answered:
        why = f"the API server refused {signals.refused:.0f} of {signals.answered:.0f} requests"
        return Judgement(Verdict.OVERLOADED, Cause.REFUSED, why)
    if signals.p99_s is not None and signals.p99_s > STRAINED_S:
        verdict, limit_s = (Verdict.OVERLOADED, SLOW_S) if signals.p99_s > SLOW_S else (Verdict.STRAINED, STRAINED_S)
        return Judgement(verdict, Cause.SLOW, f"one in 100 requests took the API server more than {limit_s:g} s")
    if signals.busy is not None and signals.busy > BUSY_MAX:
        why = f"{signals.busy:.0%} of what the API server works on at once is in use"
        return Judgement(Verdict.STRAINED, Cause.SEATS, why)
    if signals.queued > 0:
        why = f"{signals.queued:.0f} requests wait in the API server's queues"
        return Judgement(Verdict.STRAINED, Cause.QUEUED, why)
    if signals.busy is None and not signals.answered:
        return Judgement(Verdict.UNKNOWN, Cause.NONE, "the API server says nothing of its load")
    return Judgement(Verdict.ROOM, Cause.NONE, "the API server has room")


def start(bounds: Bounds) -> Pace:
    """Return the pace before any reading."""
    return Pace(float(bounds.start))


def onwards(pace: Pace, judgement: Judgement, opened: int, waiting: int, bounds: Bounds) -> Pace:
    """Return the pace of the next period.

    Args:
        pace: of the period that has ended.
        judgement: of that period.
        opened: nodes opened in it. A pace that was not used was not tested, and does not grow.
        waiting: nodes that wait now. If none does, the pace returns to its start.
        bounds: as configured; changes apply at once.
    """
    verdict, nodes = judgement.verdict, min(pace.nodes, float(bounds.most))
    if verdict is Verdict.OVERLOADED:
        nodes *= BACK_OFF
    elif verdict is Verdict.UNKNOWN:
        nodes = min(nodes, float(bounds.start))
    elif verdict is Verdict.ROOM:
        if opened >= pace.allowance:
            nodes += STEP
        elif not waiting:
            nodes = min(nodes + STEP, float(bounds.start)) if nodes < bounds.start else float(bounds.start)
    return Pace(min(max(nodes, LEAST), float(bounds.most)), verdict, judgement.why, judgement.cause)


def coming_max(pace: Pace, bounds: Bounds) -> int:
    """Return how many nodes an autoscaler may have on their way at once; 0 while the API server is overloaded."""
    if pace.verdict is Verdict.OVERLOADED:
        return 0
    return int(pace.nodes * HORIZON_S / bounds.period_s)
