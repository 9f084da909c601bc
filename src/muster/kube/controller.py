"""A controller that reconciles keys: informers fill a queue, and workers empty it while this process leads."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

from muster.kube.errors import ApiError, ConfigError, Conflict
from muster.kube.health import Progress
from muster.kube.informer import Informer
from muster.kube.informers import SharedInformer
from muster.kube.leader import LeaderElector, Term
from muster.kube.metrics import KubeMetrics, kube_metrics
from muster.kube.objects.meta import KubeObject
from muster.kube.workqueue import WorkQueue, WorkQueueShutDown

T = TypeVar("T", bound=KubeObject)
Reconcile = Callable[[str], Awaitable[float | None]]
"""Reconciles one key. Returns the seconds after which to reconcile it again, or None."""

log = logging.getLogger(__name__)

SYNC_TIMEOUT_S = 120.0
RECONCILE_TIMEOUT_S = 60.0
FENCE_S = 5.0
_RESYNC_RETRY_S = 2.0


class Controller:
    """Calls `reconcile(key)` for changed keys, and retries errors with backoff. A key has at most one worker at a time.

    Without an elector it works at once. With one, each term has these steps: wait until requests of the previous leader
    can no longer take effect, list all objects, queue every key, start the workers. When the lease is lost, the workers
    are cancelled.

    Args:
        name: in logs, metrics and progress marks.
        reconcile: the work. It is level-triggered: it reads the caches, not the event.
        informers: caches that must be complete before work starts, in addition to those passed to `watch`.
        workers: most keys that are reconciled at the same time.
        elector: the workers run only while it leads. Its owner runs it, as several controllers may share one lease.
        progress: marked at each reconcile, and while idle.
        reconcile_timeout_s: a reconcile that takes longer is cancelled and retried.
        fence_s: how long a request of the previous leader may still take effect after that leader stopped.
        queue: the queue of keys.
        rng: source of jitter for the queue.
        metrics: receives depth, durations and errors.
    """

    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        *,
        informers: Iterable[Informer[Any] | SharedInformer[Any]] = (),
        workers: int = 4,
        elector: LeaderElector | None = None,
        progress: Progress | None = None,
        reconcile_timeout_s: float = RECONCILE_TIMEOUT_S,
        fence_s: float = FENCE_S,
        queue: WorkQueue[str] | None = None,
        rng: random.Random | None = None,
        metrics: KubeMetrics | None = None,
    ) -> None:
        self.name = name
        self.queue: WorkQueue[str] = queue if queue is not None else WorkQueue(rng=rng)
        self._reconcile = reconcile
        self._informers: list[Informer[Any] | SharedInformer[Any]] = list(informers)
        self._sources: list[Callable[[], Iterable[str]]] = []
        self._workers = workers
        self._elector = elector
        self._progress = progress
        self._reconcile_timeout_s = reconcile_timeout_s
        self._fence_s = fence_s
        self._working = asyncio.Event()
        metrics = metrics or kube_metrics()
        metrics.queue_depth.labels(name).set_function(self.queue.__len__)
        metrics.queue_oldest.labels(name).set_function(self._oldest_s)
        self._seconds = metrics.reconcile_seconds.labels(name)
        self._errors = metrics.reconcile_errors

    @property
    def working(self) -> bool:
        """Returns whether the workers run: the caches are complete, and this replica leads if there is an elector."""
        return self._working.is_set()

    def _oldest_s(self) -> float:
        return self.queue.oldest_s() if self.working else 0.0  # on a standby, keys wait until it leads

    def not_ready(self) -> str | None:
        """Return why this process cannot serve or take over yet, or None; a check for /readyz."""
        for informer in self._informers:
            if not informer.has_synced:
                return f"no complete list of {informer.kind.RESOURCE.plural} yet"
        return None

    def watch(
        self, informer: Informer[T] | SharedInformer[T], keys: Callable[[T], Iterable[str]] | None = None
    ) -> None:
        """For each changed object, queue `keys(object)` of its old and new form; by default the object's own key."""
        keys_of: Callable[[T], Iterable[str]] = keys if keys is not None else _own_key

        def handler(old: T | None, new: T | None) -> None:
            for obj in (old, new):
                if obj is not None:
                    for key in keys_of(obj):
                        self.queue.add(key)

        def everything() -> Iterable[str]:
            return [key for obj in informer.store.values() for key in keys_of(obj)]

        if informer not in self._informers:
            self._informers.append(informer)
        self._sources.append(everything)
        informer.add_handler(handler)

    async def run(self) -> None:
        """Work until cancelled. The caller runs the informers and the elector."""
        await self._synced()
        if self._elector is None:
            await self._work()
            return
        await self._elector.while_leading(self._term, f"{self.name}/term")

    async def _term(self, term: Term) -> None:
        await term.outwait(self._fence_s, self.name)
        since = term.fenced_at(self._fence_s)
        while True:
            try:
                async with asyncio.timeout(SYNC_TIMEOUT_S):
                    await asyncio.gather(*(informer.listed_since(since) for informer in self._informers))
                break
            except TimeoutError:
                late = ", ".join(informer.kind.RESOURCE.plural for informer in self._informers)
                log.warning("%s: no complete lists of %s within %g s", self.name, late, SYNC_TIMEOUT_S)
        for source in self._sources:
            for key in source():
                self.queue.add(key)
        await self._work()

    async def _synced(self) -> None:
        while True:
            try:
                for informer in self._informers:
                    await informer.wait_synced(SYNC_TIMEOUT_S)
                return
            except TimeoutError as error:
                log.warning("%s: %s", self.name, error)
                await asyncio.sleep(_RESYNC_RETRY_S)

    async def _work(self) -> None:
        self._working.set()
        try:
            async with asyncio.TaskGroup() as group:
                if self._progress is not None:
                    group.create_task(self._mark_while_idle(self._progress))
                for number in range(self._workers):
                    group.create_task(self._worker(), name=f"{self.name}/{number}")
        finally:
            self._working.clear()
            if self._progress is not None:
                self._progress.drop(self.name)

    async def _worker(self) -> None:
        while True:
            try:
                key = await self.queue.get()
            except WorkQueueShutDown:
                return
            try:
                await self._once(key)
            finally:
                self.queue.done(key)
                if self._progress is not None:
                    self._progress.mark(self.name)

    async def _once(self, key: str) -> None:
        started = time.perf_counter()
        try:
            async with asyncio.timeout(self._reconcile_timeout_s):
                again_s = await self._reconcile(key)
        except Exception as error:
            delay_s = self.queue.add_rate_limited(key)
            self._errors.labels(self.name, type(error).__name__).inc()
            if isinstance(error, Conflict):
                log.debug("%s: %s changed meanwhile; again in %.2f s", self.name, key, delay_s)
            else:
                log.warning(
                    "%s: %s: %s; again in %.2f s",
                    self.name,
                    key,
                    str(error) or type(error).__name__,
                    delay_s,
                    exc_info=not isinstance(error, ApiError | ConfigError | TimeoutError),
                )
        else:
            self.queue.forget(key)
            if again_s is not None:
                self.queue.add_after(key, again_s)
        finally:
            self._seconds.observe(time.perf_counter() - started)

    async def _mark_while_idle(self, progress: Progress) -> None:
        """Marks progress while idle: an empty queue is not a stall, but a queue without a running worker is."""
        progress.expect(self.name, 2 * self._reconcile_timeout_s)
        while True:
            await asyncio.sleep(self._reconcile_timeout_s / 4)
            if not len(self.queue) and not self.queue.running:
                progress.mark(self.name)


def _own_key(obj: KubeObject) -> Iterable[str]:
    return (obj.key,)
