"""Authenticates pods' tokens by TokenReview, with a cache."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
from collections.abc import Callable
from typing import Final, NamedTuple

from muster.api.names import TOKEN_AUDIENCE
from muster.kube.client import Client
from muster.kube.clock import steady_time
from muster.kube.objects.auth import POD_NAME, POD_UID, TokenReview, TokenReviewSpec

_KNOWN_S: Final = 600.0
_REFUSED_S: Final = 10.0
_ENTRIES_MAX: Final = 50_000
_SERVICE_ACCOUNT: Final = "system:serviceaccount:"


class PodIdentity(NamedTuple):
    """The pod to which a token is bound."""

    namespace: str
    name: str
    uid: str


class TokenReviewer:
    """Asks the API server for the identity of a token, and caches it for at most ten minutes.

    It never stores the token itself.

    Args:
        client: the API server.
        clock: seconds since the epoch.
    """

    def __init__(self, client: Client, clock: Callable[[], float] = steady_time) -> None:
        """Create an empty cache."""
        self._client = client
        self._clock = clock
        self._known: dict[bytes, tuple[float, PodIdentity | None]] = {}
        self._asking: dict[bytes, asyncio.Future[PodIdentity | None]] = {}

    async def identify(self, token: str) -> PodIdentity | None:
        """Return the pod of the token; None if it is not a pod's token for Muster. Raises ApiError."""
        digest = hashlib.sha256(token.encode()).digest()
        known = self._known.get(digest)
        if known is not None and self._clock() < known[0]:
            return known[1]
        asking = self._asking.get(digest)
        if asking is None:
            asking = asyncio.ensure_future(self._ask(token))
            self._asking[digest] = asking
            asking.add_done_callback(lambda _: self._asking.pop(digest, None))
        identity = await asyncio.shield(asking)
        now = self._clock()
        until = min(now + _KNOWN_S, _expiry(token)) if identity is not None else now + _REFUSED_S
        if len(self._known) >= _ENTRIES_MAX:
            self._known = {key: entry for key, entry in self._known.items() if entry[0] > now}
        self._known[digest] = (until, identity)
        return identity

    async def _ask(self, token: str) -> PodIdentity | None:
        review = TokenReview(spec=TokenReviewSpec(token=token, audiences=(TOKEN_AUDIENCE,)))
        status = (await self._client.create(review)).status
        if not status.authenticated or TOKEN_AUDIENCE not in status.audiences:
            return None
        name, uid = (next(iter(status.user.extra.get(key, ())), "") for key in (POD_NAME, POD_UID))
        account = status.user.username
        if not name or not uid or not account.startswith(_SERVICE_ACCOUNT):
            return None
        return PodIdentity(account[len(_SERVICE_ACCOUNT) :].partition(":")[0], name, uid)


def _expiry(token: str) -> float:
    """Return `exp` of an accepted token; 0 if it cannot be parsed, so that the token is reviewed again."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return float(claims["exp"])
    except (ValueError, KeyError, IndexError, TypeError):
        return 0.0
