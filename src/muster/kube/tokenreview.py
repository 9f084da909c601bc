"""Authenticates service account tokens by TokenReview, with a cache."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from muster.kube.client import Client
from muster.kube.clock import steady_time
from muster.kube.objects.auth import TokenReview, TokenReviewSpec, UserInfo
from muster.kube.reviewgate import Gate

T = TypeVar("T")

_KNOWN_S: Final = 600.0
_REFUSED_S: Final = 10.0
_ENTRIES_MAX: Final = 50_000


class TokenReviewer(Generic[T]):
    """Asks the API server for the identity of a token, and caches it, by default for at most ten minutes.

    It never stores the token itself.

    Args:
        client: the API server.
        audience: the audience that tokens must have.
        identity: returns the identity of an authenticated user; None if this user is not accepted.
        gate: limits reviews of tokens that were not accepted before; None: no limit, for callers that are trusted.
        max_age_s: seconds for which an accepted token is cached, at most until it expires.
        opaque_age_s: the same for a token without a readable `exp`; 0 reviews it each time.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        client: Client,
        audience: str,
        identity: Callable[[UserInfo], T | None],
        clock: Callable[[], float] = steady_time,
        gate: Gate | None = None,
        max_age_s: float = _KNOWN_S,
        opaque_age_s: float = 0.0,
    ) -> None:
        """Create an empty cache."""
        self._gate = gate
        self._max_age_s = max_age_s
        self._opaque_age_s = opaque_age_s
        self._client = client
        self._audience = audience
        self._identity = identity
        self._clock = clock
        self._known: dict[bytes, tuple[float, T | None]] = {}
        self._asking: dict[bytes, asyncio.Future[T | None]] = {}

    async def identify(self, token: str, peer: str = "") -> T | None:
        """Return the identity of the token; None if it is not accepted.

        Args:
            token: the bearer token.
            peer: address of the client, whose invalid tokens the gate counts.

        Raises:
            ApiError: the API server did not review the token.
            TooManyInvalidTokens: the gate did not admit the token.
        """
        try:
            digest = hashlib.sha256(token.encode()).digest()
        except UnicodeEncodeError:  # bytes that are not UTF-8 cannot be sent to the API server
            return None
        known = self._known.get(digest)
        if known is not None and self._clock() < known[0]:
            return known[1]
        asking = self._asking.get(digest)
        if asking is None:
            accepted = known is not None and known[1] is not None
            asking = asyncio.ensure_future(self._ask(token) if accepted else self._ask_at_gate(token, peer))
            self._asking[digest] = asking
            asking.add_done_callback(lambda done: self._answered(digest, done))
        identity = await asyncio.shield(asking)
        now = self._clock()
        until = self._until(token, now) if identity is not None else now + _REFUSED_S
        if len(self._known) >= _ENTRIES_MAX:
            self._known = {key: entry for key, entry in self._known.items() if entry[0] > now}
        self._known[digest] = (until, identity)
        return identity

    def _until(self, token: str, now: float) -> float:
        expires_at = _expiry(token)
        return now + self._opaque_age_s if expires_at is None else min(now + self._max_age_s, expires_at)

    def _answered(self, digest: bytes, asking: asyncio.Future[T | None]) -> None:
        self._asking.pop(digest, None)
        if not asking.cancelled():
            asking.exception()  # asyncio reports an exception that is not retrieved: all that asked may have gone

    async def _ask_at_gate(self, token: str, peer: str) -> T | None:
        """Ask if the gate admits the token. A review that failed, or that accepted it, takes nothing from the gate."""
        if self._gate is None:
            return await self._ask(token)
        give_back = await self._gate.enter(peer)
        rejected = False
        try:
            identity = await self._ask(token)
            rejected = identity is None
        finally:
            if not rejected:
                give_back()
        return identity

    async def _ask(self, token: str) -> T | None:
        review = TokenReview(spec=TokenReviewSpec(token=token, audiences=(self._audience,)))
        status = (await self._client.create(review)).status
        if not status.authenticated or self._audience not in status.audiences:
            return None
        return self._identity(status.user)


def _expiry(token: str) -> float | None:
    """Return `exp` of an accepted token; None if it cannot be parsed."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return float(claims["exp"])
    except (ValueError, KeyError, IndexError, TypeError):
        return None
