"""Decides for each request whether it goes to a read cache or to the API server behind it."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass

from muster.kube.errors import ApiError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FallbackSettings:
    """How a client behaves while the read cache is away. Many clients lose it at the same moment.

    Attributes:
        jitter_s: longest pause before the first request to the API server.
        requests_per_s: most requests to the API server, on average.
        burst: requests that may be sent at once after a rest.
        retry_s: the cache is tried again after half to one and a half of this time.
        refusals: the cache counts as away after so many answers in a row that say that it cannot serve.
    """

    jitter_s: float = 5.0
    requests_per_s: float = 5.0
    burst: int = 5
    retry_s: float = 30.0
    refusals: int = 3


class Fallback:
    """Knows whether the read cache answers. It performs no I/O: times are arguments, in seconds of any steady clock.

    Args:
        cache: URL of the cache, for the log.
        rng: source of jitter.
    """

    def __init__(self, cache: str, rng: random.Random, settings: FallbackSettings | None = None) -> None:
        self._cache = cache
        self._rng = rng
        self._settings = settings or FallbackSettings()
        self._refusals = 0
        self._again_at: float | None = None
        self._direct_from = self._due = float("-inf")

    @property
    def away(self) -> bool:
        """Whether the cache is believed to be away."""
        return self._again_at is not None

    def choose(self, now: float) -> float | None:
        """Choose for a request: None for the cache, or the pause in seconds before it may go to the API server."""
        if self._again_at is None:
            return None
        if now >= self._again_at:
            self._again_at = now + self._retry_s()  # for the other requests, until this one has its answer
            return None
        return self.direct(now)

    def direct(self, now: float) -> float:
        """Take a place among the requests to the API server. Returns the pause in seconds before it."""
        settings = self._settings
        self._due = max(self._due, now) + 1 / settings.requests_per_s
        return max(0.0, self._direct_from - now, self._due - settings.burst / settings.requests_per_s - now)

    def answered(self) -> None:
        """The cache has answered a request."""
        if self._again_at is not None:
            log.info("the read cache %s answers again", self._cache)
        self._again_at = None
        self._refusals = 0

    def failed(self, error: ApiError, now: float, *, gone: bool) -> None:
        """A request to the cache ended with this error.

        Args:
            error: the error.
            now: the time.
            gone: no answer came, and none would come to another request.
        """
        if error.status and not _is_refusal(error):
            self.answered()  # an error of the request itself
            return
        self._refusals += 1
        if not gone and not self.away and self._refusals < self._settings.refusals:
            return
        if not self.away:
            log.warning("the read cache %s is away (%s); asking the API server until it is back", self._cache, error)
            self._direct_from = self._due = now + self._rng.uniform(0, self._settings.jitter_s)
        self._again_at = now + self._retry_s()

    def _retry_s(self) -> float:
        return self._settings.retry_s * self._rng.uniform(0.5, 1.5)


def _is_refusal(error: ApiError) -> bool:
    """Whether the cache, or a proxy before it, says that it cannot serve now.

    A 504 with a reason is an answer of the API: a resourceVersion that is too large.
    """
    return error.status in (502, 503) or (error.status == 504 and not error.reason)
