"""Bookmarks of all watches by one timer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from muster.readcache.hub.selection import ALL
from muster.readcache.reads.bookmarks import BookmarkTimer
from muster.readcache.reads.watches import Watch
from tests.unit.readcache.reads.loaded import Cache, pod
from tests.unit.readcache.reads.test_watches import shown


class ManualLoop:
    """The clock and the timers of an event loop, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.25
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.errors: list[dict[str, Any]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        entry = (when, callback)
        self.timers.append(entry)
        loop = self

        class Handle:
            def cancel(self) -> None:
                loop.timers.remove(entry)

        return Handle()  # type: ignore[return-value]

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def run_until(self, end: float) -> None:
        while due := [entry for entry in self.timers if entry[0] <= end]:
            entry = min(due, key=lambda each: each[0])
            self.timers.remove(entry)
            self.now = max(self.now, entry[0])
            entry[1]()
        self.now = end


class Watched:
    """A watch of pods from version 10, with a bookmark timer on a manual clock."""

    def __init__(self, cache: Cache, loop: ManualLoop, *, timeout_s: float, period_s: float = 60.0) -> None:
        self.sent: list[tuple[float, str]] = []
        self.timer = BookmarkTimer(loop, random.Random(3), period_s)  # type: ignore[arg-type]
        self.loop = loop
        store = cache.source.store
        self.subscription = store.subscribe(ALL, 10, NoView(), self.take)
        self.timer.add(self.subscription, cache.source.format, 10, loop.now + timeout_s)

    def take(self, frames: list[bytes]) -> None:
        self.sent += [(self.loop.now, text) for text in shown(b"".join(frames))]


class NoView:
    key: str | None = "none"

    def frame(self, type_: str, item: object, version: int) -> bytes:
        return b""


async def test_bookmarks_come_about_each_minute_and_before_the_end() -> None:
    cache, loop = Cache(pod("x", 3)), ManualLoop()
    watched = Watched(cache, loop, timeout_s=200)
    cache.source.store.bookmark(15, 0.0)
    loop.run_until(1000.25 + 300)
    times = [time - 1000.25 for time, _ in watched.sent]
    assert [text for _, text in watched.sent] == ["BOOKMARK 15"] * 4
    assert all(50 <= later - earlier <= 62 for earlier, later in zip([0.0, *times[:2]], times[:3], strict=True))
    assert 196 <= times[-1] <= 199
    assert not loop.timers, "the timer rests without watches"


async def test_no_bookmark_before_the_version_has_moved() -> None:
    cache, loop = Cache(pod("x", 3)), ManualLoop()
    watched = Watched(cache, loop, timeout_s=200)
    loop.run_until(1000.25 + 100)
    assert watched.sent == []


async def test_no_bookmark_for_a_paused_or_ended_watch() -> None:
    cache, loop = Cache(pod("x", 3)), ManualLoop()
    paused, ended = Watched(cache, loop, timeout_s=200), Watched(cache, loop, timeout_s=200)
    cache.source.store.bookmark(15, 0.0)
    paused.subscription.pause()
    ended.subscription.close()
    loop.run_until(1000.25 + 70)
    assert paused.sent == ended.sent == []
    assert len(ended.timer) == 0
    paused.subscription.resume()
    loop.run_until(1000.25 + 140)
    assert [text for _, text in paused.sent] == ["BOOKMARK 15"]


async def test_watch_that_ends_within_2_s_gets_none() -> None:
    cache, loop = Cache(pod("x", 3)), ManualLoop()
    watched = Watched(cache, loop, timeout_s=1.5)
    cache.source.store.bookmark(15, 0.0)
    loop.run_until(1000.25 + 5)
    assert watched.sent == []


async def test_one_watch_that_fails_does_not_stop_the_others() -> None:
    cache, loop = Cache(pod("x", 3)), ManualLoop()
    timer = BookmarkTimer(loop, random.Random(3))  # type: ignore[arg-type]
    sent: list[bytes] = []

    def fail(frames: list[bytes]) -> None:
        raise ConnectionResetError

    for take in (fail, sent.extend):
        subscription = cache.source.store.subscribe(ALL, 10, NoView(), take)
        timer.add(subscription, cache.source.format, 10, loop.now + 200)
    cache.source.store.bookmark(15, 0.0)
    loop.run_until(1000.25 + 70)
    assert shown(b"".join(sent)) == ["BOOKMARK 15"]
    assert isinstance(loop.errors[0]["exception"], ConnectionResetError)


async def test_only_watches_that_allow_bookmarks_wait_for_them() -> None:
    cache = Cache(pod("x", 3))
    for query, count in (("&allowWatchBookmarks=false", 0), ("", 0), ("&allowWatchBookmarks=true", 1)):
        watch = await cache.ask(f"/api/v1/pods?watch=1&resourceVersion=10{query}")
        assert isinstance(watch, Watch)
        watch.start(lambda frames: None)
        assert len(cache.bookmarks) == count
    cache.bookmarks.close()
    assert len(cache.bookmarks) == 0
