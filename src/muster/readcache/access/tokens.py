"""Authenticates bearer tokens by review."""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from muster.kube.reviewgate import Gate, TooManyInvalidTokens
from muster.readcache.access.counters import AccessCounters
from muster.readcache.access.remembered import Remembered
from muster.readcache.access.reviews import TOKEN, Reviews
from muster.readcache.access.settings import AccessSettings
from muster.readcache.access.user import User
from muster.readcache.request import Refusal


class _Answer(NamedTuple):
    """The user of a token, None if the token is not valid."""

    user: User | None


class Tokens:
    """Finds the user of a token. It keeps digests under a key of this process, never tokens.

    Args:
        reviews: asks the API server.
        settings: ages and limits.
        counters: count answers that were kept, and refusals.
        clock: seconds; never jumps.
    """

    def __init__(
        self, reviews: Reviews, settings: AccessSettings, counters: AccessCounters, clock: Callable[[], float]
    ) -> None:
        self._reviews = reviews
        self._settings = settings
        self._counters = counters
        self._secret = secrets.token_bytes(32)
        self._gate = Gate(settings.gate)
        self._answers: Remembered[bytes, _Answer] = Remembered(self._max_age_s, settings.entries_max, clock)
        self._known: OrderedDict[bytes, None] = OrderedDict()

    async def user(self, token: str, peer: str) -> User | None:
        """Return the user of a token, None if the token is not valid.

        Args:
            token: as in the request.
            peer: address of the client, whose invalid tokens are counted.

        Raises:
            Refusal: the API server did not answer, or there were too many invalid tokens.
        """
        digest = hashlib.blake2b(token.encode("utf-8", "surrogateescape"), key=self._secret, digest_size=16).digest()
        found = self._answers.get(digest)
        if found is not None:
            self._counters.kept[TOKEN] += 1
        else:
            shared = self._settings.decision_max_age_s > 0
            found = await self._answers.ask(digest, lambda: self._review(token, digest, peer), shared=shared)
        return found.user

    async def _review(self, token: str, digest: bytes, peer: str) -> _Answer:
        give_back = None
        if digest not in self._known:
            try:
                give_back = await self._gate.enter(peer)
            except TooManyInvalidTokens as error:
                self._counters.limited += 1
                text = f"the read cache got {error}"
                raise Refusal(429, "TooManyRequests", text, retry_after_s=1) from None
        valid: bool | None = None
        try:
            info = await self._reviews.token(token)
            valid = info is not None
        finally:
            if give_back is not None and valid is not False:
                give_back()
        if info is None:
            self._known.pop(digest, None)
            return _Answer(None)
        self._known[digest] = None
        self._known.move_to_end(digest)
        if len(self._known) > self._settings.entries_max:
            self._known.popitem(last=False)
        return _Answer(User(info))

    def _max_age_s(self, answer: _Answer) -> float:
        settings = self._settings
        bound_s = settings.decision_max_age_s
        return bound_s if answer.user is not None else min(bound_s, settings.rejection_max_age_s)
