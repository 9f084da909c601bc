"""Whether Prometheus can be reached, as the requests and probes of the guard find it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

from muster.telemetry.guard.serving.failure import Failure

log = logging.getLogger(__name__)

REPEAT_S: Final = 60.0
"""How often the log repeats that Prometheus is away."""
_APART_S: Final = 10.0
"""A server that comes and goes gets at most one pair of lines in this time."""
_RETRY_S: Final = 5.0
_NOT_READY: Final = (502, 503, 504)


class Presence:
    """Whether Prometheus can be reached: what the last attempt found. It writes changes into the log.

    Args:
        address: of Prometheus, for the log.
        clock: monotonic seconds.
    """

    def __init__(self, address: str, clock: Callable[[], float] = monotonic) -> None:
        self._address = address
        self._clock = clock
        self._away_since_s: float | None = None
        self._logged_s: float | None = None
        self._said_away = False

    @property
    def failure(self) -> Failure | None:
        """The failure of a request that was not sent because Prometheus is away; None if it is there."""
        if self._away_since_s is None:
            return None
        return Failure("unreachable", 502, "Prometheus cannot be reached or is not ready", retry_after_s=_RETRY_S)

    def lost(self, reason: str) -> None:
        """Record that an attempt did not reach it."""
        now_s = self._clock()
        if self._away_since_s is None:
            self._away_since_s = now_s
        apart_s = REPEAT_S if self._said_away else _APART_S
        if self._logged_s is None or now_s - self._logged_s >= apart_s:
            self._logged_s, self._said_away = now_s, True
            log.warning("Prometheus at %s cannot be reached, so requests get 502: %s", self._address, reason)

    def answered(self, status: int, *, about_itself: bool = False) -> None:
        """Record an answer.

        Args:
            status: of HTTP. A server that starts, and a proxy without a server, answer 502 to 504.
            about_itself: of a page that needs no work, so that such a status means that the server is not ready.
                A query has 503 if it took too long.
        """
        if status not in _NOT_READY:
            self._found()
        elif about_itself:
            self.lost(f"it answers with status {status}")

    def _found(self) -> None:
        """Record that it is there."""
        if self._away_since_s is None:
            return
        away_s, self._away_since_s = self._clock() - self._away_since_s, None
        if self._said_away:
            self._said_away = False
            log.info("Prometheus at %s answers again, after %.0f s", self._address, away_s)
