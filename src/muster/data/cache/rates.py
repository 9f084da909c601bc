"""Rates of downloads: one token bucket per job. Other parts set them on the control socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

MAX_RATES: Final = 1024
_BURST_S: Final = 0.25
"""A job may use so many seconds of its rate at once."""


class TooManyRates(Exception):
    """The table of rates is full."""


class Rates:
    """Rates of jobs, in bytes per second. Thread-safe.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._rates: dict[str, tuple[int, float]] = {}

    def set(self, job: str, bytes_per_s: int) -> None:
        """Limit a job's downloads; 0 removes the limit. Raises TooManyRates."""
        with self._lock:
            if bytes_per_s <= 0:
                self._rates.pop(job, None)
            elif job not in self._rates and len(self._rates) >= MAX_RATES:
                raise TooManyRates(f"{MAX_RATES} jobs have a rate already; remove one with rate 0")
            else:
                self._rates[job] = (bytes_per_s, self._clock())

    def get(self, job: str) -> int:
        """Return the job's rate in bytes per second; 0 without a limit."""
        with self._lock:
            return self._rates.get(job, (0, 0.0))[0]

    def take(self, job: str, count: int) -> float:
        """Charge bytes to a job, and return how many seconds it must pause now."""
        with self._lock:
            known = self._rates.get(job)
            if known is None:
                return 0.0
            rate, paid_until = known
            now = self._clock()
            paid_until = max(paid_until, now - _BURST_S) + count / rate
            self._rates[job] = (rate, paid_until)
            return max(0.0, paid_until - now)
