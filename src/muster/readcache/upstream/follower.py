"""Follows the API server for one kind in one media type, and fills a store.

Rules (KEP-956 bookmarks, KEP-3157 WatchList, apimachinery's list/watch semantics):
- The first state is consistent: a WatchList, or a list in pages of one snapshot.
- A watch that ends resumes from the store's version, so that clients of the cache see no gap.
- 410, over HTTP or in the stream, means a new state after a jittered pause.
- Silence beyond a deadline means a new connection.
- While the API server is away, the store keeps its content and its subscriptions.
- After a failure, once a watch is open, the server's version is compared with the store's. A server that was restored
  from an older state accepts a watch from a version in its future, and sends nothing. So the state is loaded again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import aclosing
from typing import Final

from muster.kube.connection.transport import Transport
from muster.kube.errors import ApiError, ConfigError, Gone, Invalid, ServerTimeout
from muster.kube.protobuf import WireError
from muster.readcache.hub.store import KindStore, OutOfOrder
from muster.readcache.kinds import CachedKind
from muster.readcache.upstream.counters import Counters
from muster.readcache.upstream.feed import Feed
from muster.readcache.upstream.initial import InitialState
from muster.readcache.upstream.settings import FollowSettings
from muster.readcache.upstream.source import Source
from muster.readcache.wire.format import BOOKMARK, WireFormat

log = logging.getLogger(__name__)

_FAILURES: Final = (ApiError, ConfigError, WireError, OutOfOrder)
_RELOADS: Final[dict[type[Exception], str]] = {Gone: "gone", WireError: "garbage", OutOfOrder: "out of order"}
"""Failures after which the state is loaded again, and their names in the counters."""


class _NoEnd(Exception):
    """The bookmark at the end of the initial events does not come (antrea-io/antrea#8123, rancher/rancher#53664)."""


class Follower:
    """Keeps a store equal to the API server's state of one kind.

    Args:
        store: is filled.
        transport: sends the requests to the API server.
        kind: the kind.
        wire: its media type.
        settings: deadlines and limits.
        rng: source of jitter.

    Attributes:
        counters: what happened.
        last_error: the present error; None while a watch is open.
        away_since: the event loop's time of the failure since which no watch is open; None while one is.
    """

    def __init__(
        self,
        store: KindStore,
        transport: Transport,
        kind: CachedKind,
        wire: WireFormat,
        *,
        settings: FollowSettings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.name = f"{kind.resource.plural} as {wire.media_type}"
        self.store = store
        self.wire = wire
        self.settings = settings or FollowSettings()
        self.rng = rng or random.Random()
        self.counters = Counters()
        self.source = Source(transport, kind, wire, self.settings, self._saw)
        self.feed = Feed(store, wire, self.counters)
        self.last_error: Exception | None = None
        self.away_since: float | None = None
        self._watch_list_from = float("-inf")
        self._must_load = True
        self._must_compare = False
        self._failures = 0
        self._moved = False
        self._cycle: asyncio.Task[None] | None = None
        self._comparison: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        loop = asyncio.get_running_loop()
        self.away_since = loop.time()
        while True:
            began, self._moved = loop.time(), False
            self._cycle = asyncio.create_task(self._follow(), name=self.name)
            try:
                pause_s = await self._pause_after(self._cycle)
            finally:
                await _cancelled(self._cycle, self._comparison)
                self._cycle = self._comparison = None
            well = self._moved or loop.time() - began >= self.settings.healthy_s
            self._failures = 0 if well else self._failures + 1
            if pause_s > 0:
                await asyncio.sleep(pause_s)

    def reload(self, why: str) -> None:
        """Load the whole state again, because the store is not what the API server has.

        Args:
            why: the name in the counters.
        """
        if self._must_load:
            return
        log.warning("%s: loading the state again (%s)", self.name, why)
        self.counters.breaks[why] += 1
        self._must_load = True
        self._cancel()

    def went_back(self, version: int) -> None:
        """Load the state again, because the API server is at a version below the store's."""
        if self._must_load:
            return
        log.warning("%s: the API server went back from version %d to %d", self.name, self.store.version, version)
        self.counters.resets += 1
        self._must_load = True
        self._cancel()

    @property
    def has_watch_list(self) -> bool:
        """Whether the API server is believed to have WatchList."""
        return asyncio.get_running_loop().time() >= self._watch_list_from

    def miss_watch_list(self, error: Exception) -> None:
        """Do without WatchList for a while."""
        log.info("%s: no WatchList (%s); listing in pages", self.name, error)
        self.counters.breaks["no WatchList"] += 1
        self._watch_list_from = asyncio.get_running_loop().time() + self.settings.watch_list_again_s

    def _cancel(self) -> None:
        if self._cycle is not None:
            self._cycle.cancel()

    async def _pause_after(self, cycle: asyncio.Task[None]) -> float:
        """Wait for the end of a watch. Returns the pause before the next one."""
        try:
            await cycle
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            return self._jitter_s()  # `reload` was called
        except _FAILURES as error:
            return self._failed(error)
        return self._backoff_s() if self._failures else 0.0

    async def _follow(self) -> None:
        if self._must_load:
            if self.has_watch_list:
                try:
                    await self._load_by_watching()
                    return
                except (Invalid, _NoEnd) as error:
                    self.miss_watch_list(error)
            await self._load_by_pages()
        await self._watch()

    async def _compare(self) -> None:
        """Load the state again if the server's versions went back, as after a restore of etcd."""
        before = self.store.version
        try:
            version = await self.source.newest_version(self.settings.request_timeout_s)
        except _FAILURES as error:  # the next watch tries again
            log.info("%s: the versions could not be compared: %s", self.name, error)
            return
        self._must_compare = False
        if version < before:
            self.went_back(version)

    async def _load_by_watching(self) -> None:
        initial: InitialState | None = InitialState(self.wire)
        watch = self.source.watch(
            None, timeout_s=self._timeout_s(), stall_s=self.settings.stall_s, on_open=self._opened
        )
        try:
            async with asyncio.timeout(self.settings.initial_s) as limit, aclosing(watch) as batches:
                async for frames in batches:
                    for frame in frames:
                        if initial is None:
                            self.feed.take(frame)
                            self._moved = True
                        elif frame.type != BOOKMARK:
                            initial.take(frame)
                        elif frame.initial_end:
                            self._loaded(initial.objects(), frame.version)
                            initial = None
                            limit.reschedule(None)
        except TimeoutError:
            raise _NoEnd(f"the initial events did not end within {self.settings.initial_s:g} s") from None
        if initial is not None:
            raise _NoEnd("the watch ended before its initial events did")

    async def _load_by_pages(self) -> None:
        try:
            datas, version = await self._pages(self.settings.page)
        except Gone:  # the snapshot expired between two pages
            datas, version = await self._pages(0)
        self._loaded(datas, version)

    async def _pages(self, limit: int) -> tuple[list[bytes], int]:
        meta, datas = await self.source.page(limit)
        version = meta.version
        while meta.continue_token:
            meta, more = await self.source.page(limit, meta.continue_token)
            datas += more
        return datas, version

    async def _watch(self) -> None:
        watch = self.source.watch(
            self.store.version, timeout_s=self._timeout_s(), stall_s=self.settings.stall_s, on_open=self._opened
        )
        async with aclosing(watch) as batches:
            async for frames in batches:
                for frame in frames:
                    self.feed.take(frame)
                self._moved = True

    def _loaded(self, datas: list[bytes], version: int) -> None:
        self.feed.load(datas, version)
        self._must_load = self._must_compare = False

    def _opened(self) -> None:
        self.counters.watches += 1
        self.away_since = None
        self.last_error = None
        if self._must_compare and not self._must_load:
            self._comparison = asyncio.create_task(self._compare(), name=f"{self.name}: version")

    def _saw(self) -> None:
        self.store.seen_at = asyncio.get_running_loop().time()

    def _failed(self, error: Exception) -> float:
        """Note a failure. Returns the pause before the next try."""
        if self.away_since is None:
            self.away_since = asyncio.get_running_loop().time()
        if str(error) != str(self.last_error):
            log.warning("%s: %s", self.name, error)
        self.last_error = error
        reload = next((name for kind, name in _RELOADS.items() if isinstance(error, kind)), "")
        if reload:
            self._must_load = True
            self.counters.breaks[reload] += 1
            return self._jitter_s() + (self._backoff_s() if self._failures else 0.0)
        self._must_compare = True
        self.counters.breaks["stall" if isinstance(error, ServerTimeout) else type(error).__name__] += 1
        asked_s = error.retry_after_s if isinstance(error, ApiError) else None
        return min(asked_s or 0.0, self.settings.retry_after_max_s) + self._backoff_s()

    def _backoff_s(self) -> float:
        longest_s = self.settings.backoff_base_s * 2.0 ** min(self._failures, 10)
        return self.rng.uniform(0, min(self.settings.backoff_max_s, longest_s))

    def _jitter_s(self) -> float:
        return self.rng.uniform(0, self.settings.relist_jitter_s)

    def _timeout_s(self) -> float:
        return self.settings.watch_timeout_s * self.rng.uniform(1, 2)


async def _cancelled(*tasks: asyncio.Task[None] | None) -> None:
    left = [task for task in tasks if task is not None and not task.done()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left)
