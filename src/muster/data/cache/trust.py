"""Decides who may read what the cache holds: the job that brought it, or credentials that may read the object now."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from muster.sdk.data.errors import Forbidden, ObjectChanged, Unavailable
from muster.sdk.data.store import ObjectInfo

_FRESH_S: Final = 60.0
"""An answer of the store counts so long without another question."""
_STALE_S: Final = 1800.0
"""An answer counts so long while the store does not answer: training continues while the bucket is away."""
_REFUSED_S: Final = 5.0
_MAX_ANSWERS: Final = 100_000
_MAX_GRANTS: Final = 500_000

Object = tuple[str, str, str]
"""Store, key and version."""
_Right = tuple[str, str, str]
"""Fingerprint of credentials, store and key."""


class Who(NamedTuple):
    """A reader: its job, whether the job is proven by a ticket, and the fingerprint of its credentials."""

    job: str
    proven: bool
    fingerprint: str


class _Answer(NamedTuple):
    time_s: float
    version: str
    """ETag of the object; "" if the store refused."""


class Trust:
    """Rights of readers, as the store answered. They live in memory only.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._answers: OrderedDict[_Right, _Answer] = OrderedDict()
        self._grants: OrderedDict[tuple[str, Object], None] = OrderedDict()
        self._asking: dict[_Right, asyncio.Task[str]] = {}

    def fingerprint(self, store: str, credentials: Mapping[str, str]) -> str:
        """Return a value that is equal only for equal credentials of the same store, and does not reveal them."""
        text = json.dumps([store, sorted(credentials.items())])
        return hmac.new(self._key, text.encode(), hashlib.sha256).hexdigest()

    def granted(self, who: Who, target: Object) -> None:
        """Record that the store gave this reader the object's bytes."""
        store, key, version = target
        self._keep((who.fingerprint, store, key), version)
        self._grant(who, target)

    def same_job(self, who: Who, target: Object, owner: str) -> bool:
        """Return whether the reader's job brought the object here, or proved before that it may read it."""
        return who.proven and (owner == who.job or (who.job, target) in self._grants)

    async def check(self, who: Who, target: Object, owner: str, ask: Callable[[], Awaitable[ObjectInfo]]) -> None:
        """Return if the reader may have the object. `ask` sends HEAD with the reader's credentials.

        Raises Forbidden, NotFound, ObjectChanged, Unavailable and other StoreErrors.
        """
        if self.same_job(who, target, owner):
            return
        store, key, version = target
        right = (who.fingerprint, store, key)
        known = self._answers.get(right)
        if known is not None and self._fresh(known, version):
            found = known.version
        else:
            try:
                found = await self._ask(right, ask)
            except Unavailable:
                if known is None or not known.version or self._clock() - known.time_s > _STALE_S:
                    raise
                found = known.version
        if not found:
            raise Forbidden(f"{key}: the store refuses these credentials", store, key)
        if found != version:
            raise ObjectChanged(f"{key}: the object has another ETag now", store, key)
        self._grant(who, target)

    def _fresh(self, answer: _Answer, version: str) -> bool:
        # A refusal and another version may change at any time, so they count only for moments.
        limit_s = _FRESH_S if answer.version == version else _REFUSED_S
        return self._clock() - answer.time_s <= limit_s

    async def _ask(self, right: _Right, ask: Callable[[], Awaitable[ObjectInfo]]) -> str:
        """Ask once, however many readers with these credentials wait."""
        task = self._asking.get(right)
        if task is None:
            task = self._asking[right] = asyncio.create_task(self._answer(right, ask))
            task.add_done_callback(lambda ended: self._asked(right, ended))
        return await asyncio.shield(task)

    async def _answer(self, right: _Right, ask: Callable[[], Awaitable[ObjectInfo]]) -> str:
        try:
            version = (await ask()).etag
        except Forbidden:
            version = ""
        self._keep(right, version)
        return version

    def _asked(self, right: _Right, task: asyncio.Task[str]) -> None:
        del self._asking[right]
        if not task.cancelled():
            task.exception()

    def _keep(self, right: _Right, version: str) -> None:
        self._answers.pop(right, None)
        while len(self._answers) >= _MAX_ANSWERS:
            self._answers.popitem(last=False)
        self._answers[right] = _Answer(self._clock(), version)

    def _grant(self, who: Who, target: Object) -> None:
        if who.proven:
            self._grants.pop((who.job, target), None)
            while len(self._grants) >= _MAX_GRANTS:
                self._grants.popitem(last=False)
            self._grants[(who.job, target)] = None
