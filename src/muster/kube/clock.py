"""The clock of a process: seconds since the epoch, looked up once and from then on counted by the monotonic clock.

Somebody who sets the time of day moves no deadline with it. It tells times to people and to other machines as well as
the time of day did when the process started; while the machine sleeps it stands still, as all timers do.
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
