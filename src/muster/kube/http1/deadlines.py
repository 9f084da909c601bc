"""One timer for many deadlines of equal length."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")


class Deadlines(Generic[Key]):
    """Calls `expired` for each key that was armed `timeout_s` ago and not disarmed.

    All deadlines have the same length, so the order of arming is the order of expiry, and one timer is enough.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, timeout_s: float, expired: Callable[[Key], None]) -> None:
        self._loop = loop
        self._timeout_s = timeout_s
        self._expired = expired
        self._ends: dict[Key, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._ends)

    def __contains__(self, key: Key) -> bool:
        return key in self._ends

    def arm(self, key: Key) -> None:
        """Start the deadline of a key, or start it again."""
        self._ends.pop(key, None)
        self._ends[key] = end = self._loop.time() + self._timeout_s
        if self._timer is None:
            self._timer = self._loop.call_at(end, self._expire)

    def disarm(self, key: Key) -> None:
        """Forget a key."""
        self._ends.pop(key, None)

    def oldest(self) -> Key | None:
        """The key that expires first."""
        return next(iter(self._ends), None)

    def newest(self) -> Key | None:
        """The key that was armed last."""
        return next(reversed(self._ends), None)

    def close(self) -> None:
        """Forget all keys."""
        self._ends.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._ends:
            key, end = next(iter(self._ends.items()))
            if end > now:
                self._timer = self._loop.call_at(end, self._expire)
                return
            del self._ends[key]
            self._expired(key)
