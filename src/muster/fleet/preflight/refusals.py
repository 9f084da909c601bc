"""Handles tests that the API server refuses: a PriorityClass is missing, a quota is full, or admission refuses them.

The cause is rarely a single node. So after a refusal, one test at a time is tried with a back-off, until one succeeds.
A node whose own test was refused waits too, so that other nodes are tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from muster.fleet.preflight.plan import Start
from muster.fleet.preflight.snapshot import Attempts, Refusal
from muster.fleet.preflight.testpod import PRIORITY_CLASS
from muster.kube.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Gone,
    NotFound,
    ServerTimeout,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)

REFUSED_S: Final = 10.0
REFUSED_MAX_S: Final = 300.0
"""The back-off, doubled each time up to a limit. The limit is short, so that a fix takes effect soon."""
_PASSING: Final = (AlreadyExists, Conflict, Gone, NotFound, ServerTimeout, TooManyRequests, Unauthorized, Unavailable)
_MESSAGE_MAX: Final = 400


def refusal_of(error: ApiError) -> str:
    """Return why no test can be created; "" if the error is temporary or the test exists."""
    if isinstance(error, _PASSING):
        return ""
    said = error.message[:_MESSAGE_MAX]
    if f"no PriorityClass with name {PRIORITY_CLASS}" in said:
        return f"{said}; the chart makes it where health.preflight.enabled is set: helm upgrade"
    return said


def after_starts(
    outcomes: Sequence[tuple[Start, str]],
    before: Refusal | None,
    attempts: Mapping[str, Attempts],
    now: float,
    made_with: str,
) -> tuple[Refusal | None, dict[str, Attempts]]:
    """Return what to remember after trying to create tests.

    Args:
        outcomes: each test that was created, with "", or refused, with the reason.
        before: the refusal remembered so far.
        attempts: by node.
        now: seconds since the epoch.
        made_with: identifies the configuration (`testpod.made_with`).
    """
    known, refused = dict(attempts), [(start, why) for start, why in outcomes if why]
    for start, _ in refused:
        count = known[start.node].count + 1 if start.node in known else 1
        known[start.node] = Attempts(start.identity, count, now + _pause_s(count), made_with)
    if not refused:
        return (None if outcomes else before), known
    count = before.count + 1 if before is not None and len(refused) == len(outcomes) else 1
    return Refusal(refused[0][1], count, now + _pause_s(count), made_with), known


def _pause_s(count: int) -> float:
    return min(REFUSED_MAX_S, REFUSED_S * float(2 ** min(count - 1, 10)))
