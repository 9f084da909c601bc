"""A queue of keys for reconcilers, like client-go's: a key waits at most once and has at most one worker."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class WorkQueueShutDown(Exception):
    """Raised by `get` after `shut_down`, when the queue is empty."""


class WorkQueue(Generic[K]):
    """Keys that wait for workers. Use it from one event loop.

    If a key is added while a worker has it, it waits until `done`. After failures a key waits for `base_delay_s`,
    doubled each time up to `max_delay_s`, with jitter between half the delay and the whole delay.

    Args:
        base_delay_s: delay after a key's first failure.
        max_delay_s: largest delay.
        rng: source of jitter.
        clock: monotonic seconds; by default the running loop's time, which may be virtual.
    """

    def __init__(
        self,
        *,
        base_delay_s: float = 0.05,
        max_delay_s: float = 60.0,
        rng: random.Random | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._base_delay_s = base_delay_s
        self._max_delay_s = max_delay_s
        self._rng = rng or random.Random()
        self._clock = clock
        self._ready: deque[K] = deque()
        self._queued: dict[K, float] = {}
        self._running: set[K] = set()
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._later: list[tuple[float, int, K]] = []
        self._due: dict[K, float] = {}
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._getters: deque[asyncio.Future[None]] = deque()
        self._shut_down = False

    def __len__(self) -> int:
        """The number of keys that are ready for a worker."""
        return len(self._ready)

    def oldest_s(self) -> float:
        """Return for how many seconds the first key in the queue has been ready for a worker; 0 for an empty queue."""
        return self._now() - self._queued[self._ready[0]] if self._ready else 0.0

    @property
    def running(self) -> int:
        """The number of keys that workers have."""
        return len(self._running)

    @property
    def delayed(self) -> int:
        """The number of keys with a delay."""
        return len(self._due)

    def add(self, key: K) -> None:
        """Queue `key` for the next free worker. Does nothing if it waits already, or after `shut_down`."""
        if self._shut_down or key in self._queued:
            return
        self._due.pop(key, None)
        if key in self._running:
            self._again.add(key)
            return
        self._queued[key] = self._now()
        self._ready.append(key)
        self._wake_one()

    def add_after(self, key: K, delay_s: float) -> None:
        """Add `key` after `delay_s` seconds. If an earlier time is set already, that time is kept."""
        if delay_s <= 0:
            self.add(key)
            return
        if self._shut_down:
            return
        when = self._now() + delay_s
        if self._due.get(key, float("inf")) <= when:
            return
        self._due[key] = when
        heapq.heappush(self._later, (when, next(self._order), key))
        self._arm()

    def add_rate_limited(self, key: K) -> float:
        """Add `key` after its back-off, and count one more failure. Returns the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        limit = min(self._base_delay_s * 2.0 ** min(failures, 64), self._max_delay_s)
        delay_s = limit * self._rng.uniform(0.5, 1.0)
        self.add_after(key, delay_s)
        return delay_s

    def failures(self, key: K) -> int:
        """Returns how often `key` was rate-limited since it was last forgotten."""
        return self._failures.get(key, 0)

    def forget(self, key: K) -> None:
        """Reset the backoff of `key`, because it succeeded."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """Wait for a key and take it. Call `done` afterwards. Raises WorkQueueShutDown after `shut_down`."""
        while not self._ready:
            if self._shut_down:
                raise WorkQueueShutDown
            waiter = asyncio.get_running_loop().create_future()
            self._getters.append(waiter)
            try:
                await waiter
            except BaseException:
                if waiter.done() and not waiter.cancelled():
                    self._wake_one()  # pass this wake-up on, because this caller was cancelled
                else:
                    with contextlib.suppress(ValueError):
                        self._getters.remove(waiter)
                raise
        key = self._ready.popleft()
        del self._queued[key]
        self._running.add(key)
        return key

    def done(self, key: K) -> None:
        """End the work on `key`. If the key was added in the meantime, it is queued again."""
        self._running.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def shut_down(self) -> None:
        """Accept no more keys. `get` returns the keys that are ready, and then raises."""
        self._shut_down = True
        self._again.clear()
        self._due.clear()
        self._later.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._getters:
            self._wake_one()

    def _now(self) -> float:
        return self._clock() if self._clock is not None else asyncio.get_running_loop().time()

    def _wake_one(self) -> None:
        while self._getters:
            waiter = self._getters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._later and self._due.get(self._later[0][2]) != self._later[0][0]:
            heapq.heappop(self._later)  # an earlier time was set, or the key was added in the meantime
        if self._later:
            delay_s = max(0.0, self._later[0][0] - self._now())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._promote)

    def _promote(self) -> None:
        self._timer = None
        now = self._now()
        while self._later and self._later[0][0] <= now:
            when, _, key = heapq.heappop(self._later)
            if self._due.get(key) == when:
                del self._due[key]  # also if the key waits already: a past time must not replace later ones
                self.add(key)
        self._arm()
