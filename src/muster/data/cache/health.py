"""Decides whether the disk is used: it is bypassed while it is slow or fails, and returns after good trials.

A cache that switches its disk off must also switch it on again (juicedata/juicefs 4779).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_SLOW_BASE_S: Final = 2.0
_SLOW_BYTES_PER_S: Final = 8 << 20
"""An operation is slow if it takes longer than the base and its bytes at this rate."""
_SLOW_IN_A_ROW: Final = 3
_FIRST_TRIAL_S: Final = 10.0
_LONGEST_TRIAL_S: Final = 300.0
_GOOD_TRIALS: Final = 2
_BETWEEN_GOOD_S: Final = 2.0


def allowed_s(count: int) -> float:
    """Seconds that an operation on `count` bytes may take before it counts as slow."""
    return _SLOW_BASE_S + count / _SLOW_BYTES_PER_S


class DiskHealth:
    """State of the disk: used, or bypassed for a reason.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._slow = 0
        self._good = 0
        self._wait_s = _FIRST_TRIAL_S
        self._next_s = 0.0
        self.reason = ""
        self.bypasses = 0

    @property
    def usable(self) -> bool:
        """True unless the disk is bypassed."""
        return not self.reason

    def record(self, count: int, seconds: float) -> None:
        """Record an operation on `count` bytes that succeeded."""
        if seconds <= allowed_s(count):
            self._slow = 0
            return
        self._slow += 1
        if self._slow >= _SLOW_IN_A_ROW:
            self.fail(f"slow: {count} bytes took {seconds:.0f} s")

    def fail(self, reason: str) -> None:
        """Bypass the disk. A failure of a trial doubles the time to the next one."""
        self._good = self._slow = 0
        if self.usable:
            self.bypasses += 1
            self._wait_s = _FIRST_TRIAL_S
        else:
            self._wait_s = min(_LONGEST_TRIAL_S, self._wait_s * 2)
        self.reason = reason
        self._next_s = self._clock() + self._wait_s

    def trial_due(self) -> bool:
        """Return whether the bypassed disk should be tried now."""
        return not self.usable and self._clock() >= self._next_s

    def passed(self, count: int, seconds: float) -> bool:
        """Record a trial that succeeded. After several fast ones in a row the disk is used, and this returns True."""
        if seconds > allowed_s(count):
            self.fail(f"slow: {count} bytes of a trial took {seconds:.0f} s")
            return False
        self._good += 1
        self._next_s = self._clock() + _BETWEEN_GOOD_S
        if self._good >= _GOOD_TRIALS:
            self.reason = ""
            self._good = self._slow = 0
        return self.usable
