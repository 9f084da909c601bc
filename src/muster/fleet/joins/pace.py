"""How many nodes may be opened to pods in a period: more by one as long as all is well, half as many when it is not.

Additive increase, multiplicative decrease, as TCP finds the rate that a shared path can take (RFC 5681): whatever else
loads the API server, joins take what is left and give way first. Never below one node a period, so that every node
joins in the end even where somebody else's refusals never stop.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from muster.fleet.joins.scrape import Signals

STEP = 1.0
"""Nodes a period more after each period that used all it had while there was room."""
BACK_OFF = 0.5
"""Share that is left after a period in which the API server had too much to do."""
LEAST = 1.0
"""Nodes a period: whatever happens, every node joins in the end."""
REFUSED_SHARE_MAX = 0.001
"""Of all requests, answered 429: one client that asks too often is no overload, one in a thousand requests is."""
SLOW_S = 1.0
"""99 of 100 requests for single objects within it: Kubernetes' own objective for API calls (SLO of SIG Scalability)."""
STRAINED_S = SLOW_S / 2
BUSY_MAX = 0.8
"""Share of the API server's seats in use: above it nothing is added."""
HORIZON_S = 120.0
"""Nodes that an autoscaler may have on their way are those that can be opened within it."""


class Verdict(StrEnum):
    """What the API server can take. Values are in metrics and in Events: never rename one."""

    ROOM = "Room"
    STRAINED = "Strained"
    OVERLOADED = "Overloaded"
    UNKNOWN = "Unknown"


class Cause(StrEnum):
    """Why a verdict was reached. Values are in the ConfigMap's annotation and must not change."""

    NONE = "None"
    REFUSED = "RequestsRefused"
    SLOW = "RequestsSlow"
    SEATS = "SeatsInUse"
    QUEUED = "RequestsQueued"
    NO_ANSWER = "NoAnswer"
    UNREADABLE = "MetricsUnreadable"


class Judgement(msgspec.Struct, frozen=True):
    """What the API server can take, why, and the same for people."""

    verdict: Verdict
    cause: Cause
    why: str


class Bounds(msgspec.Struct, frozen=True):
    """Nodes a period at first, and at most; and how long a period is."""

    start: int = 5
    most: int = 50
    period_s: float = 5.0


class Pace(msgspec.Struct, frozen=True):
    """Nodes that may be opened in a period, and why so many."""

    nodes: float
    verdict: Verdict = Verdict.UNKNOWN
    why: str = "nothing is known of the API server yet"
    cause: Cause = Cause.NONE

    @property
    def allowance(self) -> int:
        """Whole nodes."""
        return int(self.nodes)


def judge(signals: Signals) -> Judgement:
    """Say what the API server can take, and why."""
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
    """Return the pace before anything is known."""
    return Pace(float(bounds.start))


def onwards(pace: Pace, judgement: Judgement, opened: int, waiting: int, bounds: Bounds) -> Pace:
    """Return the pace of the next period.

    Args:
        pace: of the period that is over.
        judgement: on that period.
        opened: nodes opened in it; a pace that was not used has not been tried, and does not grow.
        waiting: nodes that wait now; where none does, the pace goes back to where it starts.
        bounds: as configured; changed ones hold at once.
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
    """Return how many nodes an autoscaler may have on their way at once: none while the API server has too much."""
    if pace.verdict is Verdict.OVERLOADED:
        return 0
    return int(pace.nodes * HORIZON_S / bounds.period_s)
