"""Deadlines of calls that may have to be repeated."""

from __future__ import annotations

import time

SLOWEST_BYTES_PER_S = 1 << 20


class Deadline:
    """The time at which a call ends, counted from now.

    Args:
        seconds: time for the call itself.
        size_bytes: bytes that the call moves; each MiB adds a second, so that one huge object can be read at all.
    """

    def __init__(self, seconds: float, size_bytes: int = 0) -> None:
        self.seconds = seconds
        self._end = time.monotonic() + seconds + size_bytes / SLOWEST_BYTES_PER_S

    def add_bytes(self, size_bytes: int) -> None:
        """Allow time for bytes that the call learned of later."""
        self._end += size_bytes / SLOWEST_BYTES_PER_S

    def remaining_s(self) -> float:
        """Seconds until the end, at least 0."""
        return max(0.0, self._end - time.monotonic())

    def passed(self) -> bool:
        """Returns whether the time is over."""
        return self.remaining_s() <= 0
