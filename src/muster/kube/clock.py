"""The clock of a process: seconds since the epoch, read once and then counted by the monotonic clock.

Setting the time of day does not move a deadline. Times shown to people and sent to other machines are as exact as the
time of day was when the process started. While the machine sleeps the clock stands still, as all timers do.
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
