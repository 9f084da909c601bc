"""An asyncio event loop with virtual time: when no callback is ready, the clock jumps to the next timer.

Threads, sockets, signals and the wall clock raise errors. Callbacks run in the order in which they were scheduled, and
sets of tasks iterate in the order of their numbers. So a run depends only on the code that is run.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextvars import Context, copy_context
from heapq import heappop, heappush
from typing import Any, TypeVar

from muster.sim.virtual.handle import Handle
from muster.sim.virtual.process import PROCESS, Process

T = TypeVar("T")
START_S = 1_800_000_000.0
"""The virtual moment at which every run starts, in seconds since the epoch."""


_ROUNDS = 20
_STEPS_TO_WIND_UP = 100_000


class Stuck(RuntimeError):
    """Deadlock: no callback is ready, and no timer is set."""


class TooManySteps(RuntimeError):
    """The run made more callbacks than allowed, so it probably loops."""


class VirtualTask(asyncio.Task[Any]):
    """A task whose hash is its number. So sets of tasks have the same order in every run."""

    _numbers = itertools.count()

    def __init__(self, *args: Any, **options: Any) -> None:
        self._number = next(VirtualTask._numbers)
        super().__init__(*args, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulation. Its time is in seconds since the epoch.

    Args:
        steps_max: the run fails after this number of callbacks.
    """

    def __init__(self, steps_max: int = 5_000_000) -> None:
        self.now = START_S
        self.steps = 0
        self._steps_max = steps_max
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._order = itertools.count()
        self._running = False
        self._closed = False
        self._failures: list[BaseException] = []
        self._put_aside_by: dict[Process, None] = {}
        self._winding_up = False
        VirtualTask._numbers = itertools.count()

    @classmethod
    def new(cls, steps_max: int = 5_000_000) -> VirtualLoop:
        """Return a new loop. It implements only the methods that simulations need."""
        return cls(steps_max)

    # Methods that asyncio calls

    def time(self) -> float:
        """Return the virtual time."""
        return self.now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        """Schedule a callback after all callbacks that are ready now."""
        handle = Handle(self, callback, args, copy_context() if context is None else context, self.now)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Schedule a callback after `delay` virtual seconds."""
        when = self.now + delay
        handle = Handle(self, callback, args, copy_context() if context is None else context, when)
        heappush(self._timers, (when, next(self._order), handle))
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        """Schedule a callback at a virtual time."""
        handle = Handle(self, callback, args, copy_context() if context is None else context, when)
        heappush(self._timers, (when, next(self._order), handle))
        return handle

    def call_soon_threadsafe(self, *args: Any, **options: Any) -> Any:  # type: ignore[override]
        """Raises: a simulation has one thread only."""
        raise RuntimeError("simulations have no threads")

    def run_in_executor(self, *args: Any) -> Any:  # type: ignore[override]
        """Raises: a simulation has one thread only."""
        raise RuntimeError("simulations have no threads")

    def run_soon(self, handle: Handle) -> None:
        """Append a handle to the queue again. It was set aside because its process was halted."""
        self._ready.append(handle)

    def create_future(self) -> asyncio.Future[Any]:
        """Return a new future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        """Start a task."""
        return VirtualTask(coro, loop=self, name=name or "", context=context)

    def get_debug(self) -> bool:
        """Return False: asyncio's debug mode reads the wall clock."""
        return False

    def is_running(self) -> bool:
        """Returns whether callbacks are being run."""
        return self._running

    def is_closed(self) -> bool:
        """Returns whether it is closed."""
        return self._closed

    def close(self) -> None:
        """Close the loop, and drop all callbacks."""
        self._closed = True
        self._ready.clear()
        self._timers.clear()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Record an exception that no code caught. The run then fails."""
        error = context.get("exception")
        self._failures.append(error if isinstance(error, BaseException) else RuntimeError(context.get("message", "")))

    def fail(self, error: BaseException) -> None:
        """Make the run fail with this error after the present callback."""
        self._failures.append(error)

    # Running

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run until `main` is done and return what it returns.

        Raises:
            Stuck: the simulation is deadlocked.
            TooManySteps: the run made more callbacks than allowed.
        """
        if asyncio._get_running_loop() is not None:
            raise RuntimeError("another event loop runs in this thread")
        hooks = sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(finalizer=self._finalize)
        self._running = True
        try:
            task: asyncio.Task[T] = self.create_task(main)
            self._until(task)
            return task.result()
        finally:
            self._running = False
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)

    def wind_up(self) -> None:
        """Cancel all tasks, also those of dead processes, so that no unfinished task causes a warning."""
        asyncio._set_running_loop(self)
        try:
            self._winding_up = True
            self._steps_max = self.steps + _STEPS_TO_WIND_UP
            for process in self._put_aside_by:
                self._ready.extend(process.put_aside)
                process.put_aside.clear()
            for _ in range(_ROUNDS):
                left = [task for task in asyncio.all_tasks(self) if not task.done()]
                if not left:
                    break
                for task in left:
                    task.cancel()
                with contextlib.suppress(Stuck, TooManySteps), warnings.catch_warnings():
                    warnings.simplefilter("ignore", RuntimeWarning)  # about coroutines whose tasks never began
                    self._until(asyncio.gather(*left, return_exceptions=True))
        finally:
            asyncio._set_running_loop(None)
            self.close()

    def _until(self, task: asyncio.Future[Any]) -> None:
        ready, timers, failures = self._ready, self._timers, self._failures
        next_ready, winding_up, done = ready.popleft, self._winding_up, task.done
        while not done():
            if not ready:
                while timers and timers[0][2].cancelled_:
                    heappop(timers)
                if not timers:
                    raise Stuck("nothing is ready and no timer is set")
                now = max(timers[0][0], self.now)
                self.now = now
                while timers and timers[0][0] <= now:
                    ready.append(heappop(timers)[2])
            handle = next_ready()
            if handle.cancelled_:
                continue
            context = handle.context
            process = context.get(PROCESS)
            if process is not None and not winding_up:
                if not process.halted:
                    process.before_step()
                if process.halted:
                    process.put_aside.append(handle)
                    self._put_aside_by[process] = None
                    continue
            self.steps = steps = self.steps + 1
            if steps > self._steps_max:
                raise TooManySteps(f"{steps} callbacks and no end")
            context.run(handle.callback, *handle.args)
            if failures and not winding_up:
                raise failures[0]

    def _finalize(self, generator: AsyncGenerator[Any, Any]) -> None:
        self.create_task(generator.aclose())
