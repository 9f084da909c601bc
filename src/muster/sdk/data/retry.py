"""Pauses between the attempts of a call: exponential, with jitter."""

from __future__ import annotations

import math
import random
import time

from muster.sdk.data.deadline import Deadline

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 10.0
FIRST_PAUSE_WHEN_THROTTLED_S = 1.0
LONGEST_PAUSE_WHEN_THROTTLED_S = 30.0


class Backoff:
    """Counts the failed attempts of one call and pauses between them.

    A pause is between half and all of a limit, which doubles with each failure in a row. If the store asks for fewer
    requests (503 or 429), pauses are longer. obstore does not pass on the header Retry-After.
    """

    def __init__(self, deadline: Deadline) -> None:
        self.attempts = 0
        self._in_a_row = 0
        self._deadline = deadline
        self._began = self._progressed = time.monotonic()

    def elapsed_s(self) -> float:
        """Seconds since the first attempt."""
        return time.monotonic() - self._began

    def stalled_s(self) -> float:
        """Seconds since the first attempt, or since bytes last arrived."""
        return time.monotonic() - self._progressed

    def remaining_s(self) -> float:
        """Seconds until the deadline, at least 0."""
        return self._deadline.remaining_s()

    def pause(self, throttled: bool = False, at_most_s: float = math.inf) -> bool:
        """Wait before the next attempt. Returns False at once if the deadline or `at_most_s` would pass first."""
        first, longest = (
            (FIRST_PAUSE_WHEN_THROTTLED_S, LONGEST_PAUSE_WHEN_THROTTLED_S)
            if throttled
            else (FIRST_PAUSE_S, LONGEST_PAUSE_S)
        )
        limit_s = min(longest, first * 2 ** min(self._in_a_row, 20))
        self.attempts += 1
        self._in_a_row += 1
        pause_s = limit_s * random.uniform(0.5, 1.0)
        if pause_s >= min(at_most_s, self._deadline.remaining_s()):
            return False
        time.sleep(pause_s)
        return True

    def progressed(self) -> None:
        """Begin again with short pauses, because some bytes arrived."""
        self._in_a_row = 0
        self._progressed = time.monotonic()
