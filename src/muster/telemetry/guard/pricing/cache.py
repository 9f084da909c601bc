"""Remembers answers of the server for a time: bounded, and with one question in flight for each key."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Kept(Generic[V]):
    """A value, and when it was asked for."""

    value: V
    at_s: float


class Cache(Generic[K, V]):
    """Values by key.

    A value younger than `fresh_s` is returned as it is. One younger than `stale_s` is returned as well, and asked for
    again in the background. Values that a caller does not accept any more are asked for again before they are returned.

    Args:
        clock: monotonic seconds.
        fresh_s: age up to which a value is not asked for again.
        stale_s: age up to which a value is returned.
        entries_max: number of values; the least recently used go first.
        pending_max: questions in flight; more fail at once.
    """

    def __init__(
        self, clock: Callable[[], float], fresh_s: float, stale_s: float, entries_max: int, pending_max: int
    ) -> None:
        self._clock = clock
        self._fresh_s = fresh_s
        self._stale_s = stale_s
        self._entries_max = entries_max
        self._pending_max = pending_max
        self._kept: OrderedDict[K, Kept[V]] = OrderedDict()
        self._pending: dict[K, asyncio.Task[V]] = {}

    async def get(
        self,
        key: K,
        ask: Callable[[], Awaitable[V]],
        accept: Callable[[V, float], bool] = lambda *_: True,
        wait_s: float | None = None,
    ) -> V | None:
        """Return the value, or None: too many questions are in flight, or it does not come in time.

        Args:
            key: of the value.
            ask: gets the value. Its errors reach every caller that waits for it, and are not kept.
            accept: whether a kept value of this age in seconds still counts.
            wait_s: how long to wait. The answer is still kept when it comes later. None: until it is answered.
        """
        kept = self.kept(key, ask, accept)
        if kept is not None:
            return kept.value
        task = self._start(key, ask)
        if task is None:
            return None
        done, _ = await asyncio.wait([task], timeout=wait_s)
        return task.result() if done else None

    def kept(
        self, key: K, ask: Callable[[], Awaitable[V]], accept: Callable[[V, float], bool] = lambda *_: True
    ) -> Kept[V] | None:
        """Return what `get` would return without waiting; None if it would wait. The arguments are those of `get`."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        age_s = self._clock() - kept.at_s
        if age_s >= self._stale_s or not accept(kept.value, age_s):
            return None
        self._kept.move_to_end(key)
        if age_s >= self._fresh_s:
            self._start(key, ask)
        return kept

    async def close(self) -> None:
        """Cancel the questions in flight."""
        tasks = list(self._pending.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, key: K, ask: Callable[[], Awaitable[V]]) -> asyncio.Task[V] | None:
        task = self._pending.get(key)
        if task is None and len(self._pending) < self._pending_max:
            task = self._pending[key] = asyncio.ensure_future(self._ask(key, ask))
            task.add_done_callback(_retrieve)
        return task

    async def _ask(self, key: K, ask: Callable[[], Awaitable[V]]) -> V:
        try:
            value = await ask()
            self._kept[key] = Kept(value, self._clock())
            self._kept.move_to_end(key)
            while len(self._kept) > self._entries_max:
                self._kept.popitem(last=False)
            return value
        finally:
            del self._pending[key]


def _retrieve(task: asyncio.Task[object]) -> None:
    """Mark the error of a background question as seen: the next caller asks again."""
    if not task.cancelled():
        task.exception()
