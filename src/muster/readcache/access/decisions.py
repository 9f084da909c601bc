"""Decides by review what a user may do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from muster.readcache.access.attributes import Attributes
from muster.readcache.access.counters import AccessCounters
from muster.readcache.access.remembered import Remembered
from muster.readcache.access.reviews import ACCESS, Reviews
from muster.readcache.access.settings import AccessSettings
from muster.readcache.access.user import User

_REASON_MAX: Final = 2048
_encoder = msgspec.msgpack.Encoder()


class Decision(NamedTuple):
    """The decision of the authorizers.

    Attributes:
        allowed: whether one of them allowed the request.
        reason: why it is not allowed, for the caller.
        failed: an authorizer failed, so that the API server itself would answer with an error.
    """

    allowed: bool
    reason: str = ""
    failed: bool = False


class Decisions:
    """Asks for decisions and keeps them for a while.

    Args:
        reviews: asks the API server.
        settings: ages and limits.
        counters: count decisions that were kept.
        clock: seconds; never jumps.
    """

    def __init__(
        self, reviews: Reviews, settings: AccessSettings, counters: AccessCounters, clock: Callable[[], float]
    ) -> None:
        self._reviews = reviews
        self._settings = settings
        self._counters = counters
        self._kept: Remembered[bytes, Decision] = Remembered(self._max_age_s, settings.entries_max, clock)

    async def decide(self, user: User, attributes: Attributes) -> Decision:
        """Return whether the user may do this.

        Raises:
            Refusal: the API server did not answer.
        """
        # Selectors may be long: the key is a digest.
        key = hashlib.blake2b(user.key + _encoder.encode(attributes), digest_size=16).digest()
        found = self._kept.get(key)
        if found is not None:
            self._counters.kept[ACCESS] += 1
        else:
            shared = self._settings.decision_max_age_s > 0
            found = await self._kept.ask(key, lambda: self._review(user, attributes), shared=shared)
        return found

    async def _review(self, user: User, attributes: Attributes) -> Decision:
        status = await self._reviews.access(user.info, attributes)
        if status.allowed:
            return Decision(True)
        return Decision(False, status.reason, bool(status.evaluation_error))

    def _max_age_s(self, decision: Decision) -> float:
        if decision.failed or len(decision.reason) > _REASON_MAX:
            return 0.0
        return self._settings.decision_max_age_s
