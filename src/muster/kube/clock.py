"""The clock of a process: seconds since the epoch, read once and then counted by the monotonic clock.

If an operator sets the time of day, deadlines do not move. If the time of day was wrong when the process started, all
times that the process shows or sends are wrong by the same amount. While the machine sleeps, the clock stops, as all
timers do.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Final

_STARTED_S: Final = time.time() - time.monotonic()


def steady_time() -> float:
    """Seconds since the epoch; never jumps."""
    return _STARTED_S + time.monotonic()


def instant(seconds: float) -> str:
    """Write seconds since the epoch as Kubernetes does (metav1.Time)."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
