"""A cache of one kind that follows the API server: list, watch, resume, relist.

Rules (KEP-956 bookmarks, KEP-3157 WatchList, apimachinery's list/watch semantics):
- The first list is consistent.
- A watch that ends resumes from its last resource version.
- 410, over HTTP or in the stream, means a new list after a jittered pause.
- Silence beyond a deadline means a new connection.
- The cache keeps its content until a new list is complete; handlers then get the real differences only.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing, suppress
from typing import Generic, TypeVar

import msgspec

from muster.kube.cache import Cache, Handler
from muster.kube.client import PAGE, Client
from muster.kube.errors import ApiError, ConfigError, Gone, Invalid, ServerTimeout
from muster.kube.health import Progress
from muster.kube.index import IndexFunction
from muster.kube.metrics import KubeMetrics, kube_metrics
from muster.kube.objects.meta import KubeObject
from muster.kube.watch import ADDED, BOOKMARK, DELETED, INITIAL_EVENTS_END, MODIFIED, WatchEvent

T = TypeVar("T", bound=KubeObject)

log = logging.getLogger(__name__)

WATCH_TIMEOUT_S = 300.0
STALL_S = 90.0
"""Must be longer than a minute, the interval of kube-apiserver's bookmarks (storage/cacher,
defaultBookmarkFrequency).
"""
RELIST_JITTER_S = 1.0
_BACKOFF_BASE_S = 0.2
_BACKOFF_MAX_S = 30.0
_HEALTHY_S = 5.0


class _Newcomers(Generic[T]):
    """Handlers that wait for a list that begins at `since` or later."""

    def __init__(self, handlers: tuple[Handler[T], ...], since: float) -> None:
        self.handlers = handlers
        self.since = since
        self.joined = asyncio.Event()


class Informer(Generic[T]):
    """A cache of the objects of one kind. `run` keeps it up to date.

    Args:
        client: the API server.
        kind: the kind of the objects.
        namespace: one namespace, or None for all.
        label_selector: as in the API.
        field_selector: as in the API.
        indexes: name -> function that returns the index values of an object.
        transform: applied to each received object, to drop unneeded fields.
        stored: reduces an object before it is stored. Handlers get the whole object as `new`; indexes and `old` see the
            reduced one.
        page: number of objects in a page of the list.
        watch_list: get the first list from the watch itself (sendInitialEvents), if the server supports it.
        watch_timeout_s: the server ends a watch after this time to twice this time. The informer then resumes it.
        stall_s: the informer reconnects if no data has arrived for this long.
        relist_jitter_s: longest pause before a new list after 410, because many informers fail at the same moment.
        progress: marked at each event, bookmark and list, under `name`, which also has the selection.
        rng: source of jitter.
        metrics: counts events, lists and broken watches.
    """

    def __init__(
        self,
        client: Client,
        kind: type[T],
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        indexes: Mapping[str, IndexFunction[T]] | None = None,
        transform: Callable[[T], T] | None = None,
        stored: Callable[[T], T] | None = None,
        page: int = PAGE,
        watch_list: bool = False,
        watch_timeout_s: float = WATCH_TIMEOUT_S,
        stall_s: float = STALL_S,
        relist_jitter_s: float = RELIST_JITTER_S,
        progress: Progress | None = None,
        rng: random.Random | None = None,
        metrics: KubeMetrics | None = None,
    ) -> None:
        self.kind = kind
        self.namespace = namespace
        selection = filter(None, (namespace, label_selector, field_selector))
        self.name = "/".join(("informer", kind.RESOURCE.plural, *selection))
        self.last_error: Exception | None = None
        """The present error of the watch or list; None without an error."""
        self._client = client
        self._label_selector = label_selector
        self._field_selector = field_selector
        self._transform = transform
        self._page = page
        self._watch_list = watch_list
        self._watch_timeout_s = watch_timeout_s
        self._stall_s = stall_s
        self._relist_jitter_s = relist_jitter_s
        self._progress = progress
        self._rng = rng or random.Random()
        self._metrics = metrics or kube_metrics()
        self._objects_metric = self._metrics.informer_objects.labels(kind.RESOURCE.plural)
        self._events_metric = {
            each: self._metrics.informer_events.labels(kind.RESOURCE.plural, each)
            for each in (ADDED, MODIFIED, DELETED, BOOKMARK)
        }
        self._cache: Cache[T] = Cache(self.name, stored)
        self._resource_version = ""
        self._last_progress = 0.0
        self._listing_from: float | None = None
        self._listed_from: float | None = None
        self._listed = asyncio.Event()
        self._newcomers: list[_Newcomers[T]] = []
        self._cycle: asyncio.Task[None] | None = None
        self._stale = asyncio.Event()
        self._wake = asyncio.Event()
        for name, function in (indexes or {}).items():
            self.add_index(name, function)

    @property
    def store(self) -> Mapping[str, T]:
        """All objects by key; a live, read-only view."""
        return self._cache.objects

    @property
    def indexes(self) -> Mapping[str, Mapping[str, Mapping[str, T]]]:
        """Index name -> value -> key -> object; live and read-only."""
        return self._cache.indexes

    @property
    def has_synced(self) -> bool:
        """Returns whether a first complete list is in the store."""
        return self._listed_from is not None

    @property
    def resource_version(self) -> str:
        """Returns the resource version of the store; "" before the first list."""
        return self._resource_version

    @property
    def last_progress(self) -> float:
        """The event loop's time at the last event, bookmark or list; 0 before the first."""
        return self._last_progress

    def get(self, key: str) -> T | None:
        """Return the object with this key, if there is one."""
        return self._cache.objects.get(key)

    def by_index(self, name: str, value: str) -> Mapping[str, T]:
        """Return the objects found under `value`, by key. Raises KeyError for an unknown index."""
        return self._cache.indexes[name].get(value, {})

    def add_index(self, name: str, function: IndexFunction[T]) -> None:
        """Add an index over present and future objects. Raises ValueError if the name is taken."""
        self._cache.add_index(name, function)

    def remove_index(self, name: str) -> None:
        """Drop an index. Raises KeyError when there is none of this name."""
        self._cache.remove_index(name)

    def add_handler(self, handler: Handler[T]) -> None:
        """Call `handler` for every object in the store, and then for every change.

        It gets the objects that are already in the store in their stored form. `join` gets whole objects instead.
        """
        self._cache.add_handler(handler)

    async def join(self, handlers: Iterable[Handler[T]], since: float) -> None:
        """Add handlers. They are first called for each object of a list that began at `since` or later.

        They get whole objects.

        Args:
            handlers: as for `add_handler`.
            since: the event loop's time; a new list begins if none did since then, or if objects are `stored` reduced.
        """
        if self._cache.whole:
            await self.listed_since(since)
            for handler in handlers:
                self._cache.add_handler(handler)
            return
        newcomers: _Newcomers[T] = _Newcomers(tuple(handlers), since)
        self._newcomers.append(newcomers)
        if self._listing_from is None or self._listing_from < since:
            self._restart()
        await newcomers.joined.wait()

    def leave(self, handlers: Iterable[Handler[T]]) -> None:
        """Stop calling these handlers, also those that wait to join."""
        gone = tuple(handlers)
        self._newcomers = [each for each in self._newcomers if each.handlers != gone]
        for handler in gone:
            self._cache.remove_handler(handler)

    async def wait_synced(self, timeout_s: float) -> None:
        """Wait for the first complete list. Raises TimeoutError with the present error."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.has_synced:
                    await self._listed.wait()
        except TimeoutError:
            raise no_list(self.kind, timeout_s, self.last_error) from None

    async def listed_since(self, at_s: float) -> None:
        """Wait for a complete list that began at this time of the event loop or later, as a new leader must.

        A list begins now unless one did since then.
        """
        while self._listed_from is None or self._listed_from < at_s:
            if self._listing_from is None or self._listing_from < at_s:
                self._restart()
            await self._listed.wait()

    def _restart(self) -> None:
        """List again, at once."""
        if not self._stale.is_set() and self._cycle is not None:
            self._cycle.cancel()
        self._stale.set()
        self._wake.set()

    def hurry(self) -> None:
        """End a retry pause at once, because another client has reached the API server again."""
        self._wake.set()

    async def run(self) -> None:
        """Follow the API server until cancelled."""
        failures = 0
        if self._progress is not None:
            self._progress.expect(self.name, 2 * self._stall_s + _BACKOFF_MAX_S)
        loop = asyncio.get_running_loop()
        began = loop.time()

        def age_s() -> float:
            return loop.time() - max(began, self._last_progress)

        self._metrics.informer_age.add(self.kind.RESOURCE.plural, age_s)
        try:
            while True:
                if self._stale.is_set():
                    self._stale.clear()
                    self._resource_version = ""
                self._wake.clear()
                before, started = self._last_progress, asyncio.get_running_loop().time()
                self._cycle = asyncio.create_task(self._follow(), name=self.name)
                try:
                    delay_s = await self._outcome(self._cycle, failures)
                finally:
                    await _cancelled(self._cycle)
                lasted_s = asyncio.get_running_loop().time() - started
                failures = 0 if self._last_progress > before or lasted_s > _HEALTHY_S else failures + 1
                if delay_s > 0:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._wake.wait(), delay_s)
        finally:
            self._metrics.informer_age.remove(self.kind.RESOURCE.plural, age_s)
            if self._progress is not None:
                self._progress.drop(self.name)

    async def _outcome(self, cycle: asyncio.Task[None], failures: int) -> float:
        """Wait for one list-and-watch to end; return the pause before the next."""
        backoff_s = self._rng.uniform(0, min(_BACKOFF_MAX_S, _BACKOFF_BASE_S * 2.0 ** min(failures, 10)))
        try:
            await cycle
        except asyncio.CancelledError:
            if self._stale.is_set() and not asyncio.current_task().cancelling():  # type: ignore[union-attr]
                return 0.0
            raise
        except Gone as error:
            log.info("%s: version %s is gone (%s); listing again", self.name, self._resource_version, error)
            self._broke("gone")
            self._resource_version = ""
            return self._rng.uniform(0, self._relist_jitter_s) + (backoff_s if failures else 0.0)
        except (ApiError, ConfigError, msgspec.DecodeError) as error:
            if str(error) != str(self.last_error):
                log.warning("%s: %s", self.name, error)
            self.last_error = error
            self._broke("stall" if isinstance(error, ServerTimeout) else type(error).__name__)
            if isinstance(error, msgspec.DecodeError):
                self._resource_version = ""
            return backoff_s
        return backoff_s if failures else 0.0

    async def _follow(self) -> None:
        if not self._resource_version:
            if self._watch_list:
                try:
                    await self._list_by_watching()
                    return
                except Invalid as error:
                    log.info("%s: no WatchList here (%s); listing in pages", self.name, error)
                    self._watch_list = False
            await self._list()
        async with aclosing(self._watch()) as batches:
            async for batch in batches:
                for event in batch:
                    self._apply(event)

    async def _list(self) -> None:
        """List consistently (no resourceVersion), in pages of one snapshot.

        If the snapshot expires, list without pages.
        """
        self._listing_from = asyncio.get_running_loop().time()
        try:
            try:
                fresh, version = await self._pages(self._page)
            except Gone:
                fresh, version = await self._pages(0)
            self._replace(fresh, version)
        finally:
            self._listing_from = None

    async def _pages(self, page: int) -> tuple[dict[str, T], str]:
        fresh: dict[str, T] = {}
        token = ""
        while True:
            listing = await self._client.list(
                self.kind,
                self.namespace,
                label_selector=self._label_selector,
                field_selector=self._field_selector,
                limit=page,
                continue_=token,
            )
            for obj in listing.items:
                fresh[obj.key] = self._kept(obj)
            self._moved()
            token = listing.continue_
            if not token:
                return fresh, listing.resource_version

    async def _list_by_watching(self) -> None:
        fresh: dict[str, T] = {}
        self._listing_from = asyncio.get_running_loop().time()
        try:
            async with aclosing(self._watch(send_initial_events=True)) as batches:
                async for batch in batches:
                    for event in batch:
                        if self._listing_from is None:
                            self._apply(event)
                        elif event.type == BOOKMARK:
                            self._moved()
                            if event.object.metadata.annotations.get(INITIAL_EVENTS_END) == "true":
                                self._replace(fresh, event.resource_version)
                                self._listing_from = None
                        elif event.type == DELETED:
                            fresh.pop(event.object.key, None)
                        else:
                            fresh[event.object.key] = self._kept(event.object)
        finally:
            self._listing_from = None

    def _watch(self, *, send_initial_events: bool = False) -> AsyncGenerator[Iterable[WatchEvent[T]], None]:
        return self._client.watch_batches(
            self.kind,
            self.namespace,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
            resource_version=self._resource_version,
            timeout_s=self._watch_timeout_s * self._rng.uniform(1, 2),
            stall_s=self._stall_s,
            send_initial_events=send_initial_events,
        )

    def _apply(self, event: WatchEvent[T]) -> None:
        obj = event.object
        if event.type == BOOKMARK:
            self._resource_version = obj.metadata.resource_version
        else:
            self._cache.change(obj.key, None if event.type == DELETED else self._kept(obj))
            self._resource_version = event.resource_version
            self._objects_metric.set(len(self._cache.objects))
        self.last_error = None
        self._events_metric[event.type].inc()
        self._moved()

    def _replace(self, fresh: dict[str, T], version: str) -> None:
        """Replace the content by a complete list."""
        assert self._listing_from is not None
        began = self._listing_from
        joining = [each for each in self._newcomers if each.since <= began]
        self._newcomers = [each for each in self._newcomers if each.since > began]
        self._cache.become(fresh, [handler for each in joining for handler in each.handlers])
        for each in joining:
            each.joined.set()
        self._resource_version = version
        self.last_error = None
        self._listed_from = began
        self._listed.set()
        self._listed = asyncio.Event()
        self._metrics.informer_lists.labels(self.kind.RESOURCE.plural).inc()
        self._objects_metric.set(len(self._cache.objects))
        self._moved()

    def _kept(self, obj: T) -> T:
        return self._transform(obj) if self._transform is not None else obj

    def _moved(self) -> None:
        self._last_progress = asyncio.get_running_loop().time()
        if self._progress is not None:
            self._progress.mark(self.name)

    def _broke(self, why: str) -> None:
        self._metrics.informer_breaks.labels(self.kind.RESOURCE.plural, why).inc()


def no_list(kind: type[KubeObject], timeout_s: float, error: Exception | None) -> TimeoutError:
    """Return the error of a wait for a complete list, with the cause of the delay."""
    why = f": {error}" if error is not None else ""
    return TimeoutError(f"{kind.RESOURCE.plural}: no complete list within {timeout_s:g} s{why}")


async def _cancelled(task: asyncio.Task[None]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
