"""Why a gang waits, in numbers, and the smallest change that would let it run."""

from __future__ import annotations

import msgspec

from muster.scheduler.gangs import Gang
from muster.scheduler.reasons import Reason
from muster.scheduler.snapshot import Snapshot


class Explanation(msgspec.Struct, frozen=True):
    """What is known about a gang that waits."""

    summary: str


def explain(snapshot: Snapshot, gang: Gang, *, reason: Reason | None = None) -> Explanation:
    """Explain a gang."""
    return Explanation(reason.text() if reason else "")
