"""Bookmarks of all watches, by one timer.

As kube-apiserver: about each minute, and 2 s before the watch ends, unless nothing is newer than its start.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Final

from muster.readcache.hub.subscription import Subscription
from muster.readcache.wire.format import WireFormat

PERIOD_S: Final = 60.0
BEFORE_END_S: Final = 2.0


@dataclass(slots=True)
class _Entry:
    subscription: Subscription
    format: WireFormat
    start: int
    last_s: float
    final: bool = False


class BookmarkTimer:
    """Sends bookmarks to watches. Each watch waits in the bucket of the second in which its next one is due."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random, period_s: float = PERIOD_S) -> None:
        self._loop = loop
        self._rng = rng
        self._period_s = period_s
        self._buckets: dict[int, list[_Entry]] = {}
        self._next = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """The number of watches that wait for a bookmark; ended ones are dropped when theirs would be due."""
        return sum(map(len, self._buckets.values()))

    def add(self, subscription: Subscription, format_: WireFormat, start: int, ends_at: float) -> None:
        """Includes a watch that began at version `start`, until 2 s before it ends (loop time)."""
        now = self._loop.time()
        if self._timer is None:
            self._next = int(now) + 1
            self._timer = self._loop.call_at(self._next, self._tick)
        self._schedule(_Entry(subscription, format_, start, ends_at - BEFORE_END_S), now)

    def close(self) -> None:
        """Stops the timer."""
        self._buckets.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, entry: _Entry, now: float) -> None:
        due = now + self._period_s * self._rng.uniform(0.9, 1.0)
        if due >= entry.last_s:
            due, entry.final = entry.last_s, True
        if due >= now:
            self._buckets.setdefault(max(int(due), self._next), []).append(entry)

    def _tick(self) -> None:
        now = self._loop.time()
        written: dict[tuple[int, int], list[bytes]] = {}
        while self._next <= int(now):
            due = self._buckets.pop(self._next, ())
            self._next += 1
            for entry in due:
                if not entry.subscription.closed:
                    self._send(entry, written)
                    if not entry.final:
                        self._schedule(entry, now)
        self._timer = self._loop.call_at(int(now) + 1, self._tick) if self._buckets else None

    def _send(self, entry: _Entry, written: dict[tuple[int, int], list[bytes]]) -> None:
        subscription, format_ = entry.subscription, entry.format
        version = subscription.version
        if subscription.paused or version <= entry.start:
            return
        key = (id(format_), version)
        if key not in written:
            written[key] = [format_.bookmark(version)]
        try:
            subscription.on_frames(written[key])
        except Exception as error:
            self._loop.call_exception_handler({"message": "a watch failed to take a bookmark", "exception": error})
