"""A simulated operating-system process: its tasks run, stand still or are gone together.

A task belongs to the process in whose context it was started; so do its children, its timers and its callbacks. The
event loop puts the further steps of a dead or halted process aside, so nothing of it runs: no `finally`, no cleanup.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

from muster.sim.virtual.handle import Handle

PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Process:
    """A group of tasks.

    Attributes:
        name: for people and in traces.
        halted: nothing of it runs now.
        dead: it never runs again.
        steps: callbacks run so far.
        at_step: called once before step `stop_step`, to do something to the process at a chosen await.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.halted = False
        self.dead = False
        self.steps = 0
        self.stop_step: int | None = None
        self.at_step: Callable[[], None] | None = None
        self.put_aside: list[Handle] = []
        self._context = copy_context()
        self._context.run(PROCESS.set, self)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task of this process."""
        loop = asyncio.get_running_loop()
        return loop.create_task(work, name=self.name, context=self._context.copy())

    def kill(self) -> None:
        """End at once, as SIGKILL or a power failure does."""
        self.halted = self.dead = True

    def halt(self) -> None:
        """Stand still, as SIGSTOP or a paused virtual machine does; answers and timers wait."""
        self.halted = True

    def resume(self) -> None:
        """Go on where it stood still; everything that came due meanwhile happens now, in that order."""
        if self.dead or not self.halted:
            return
        self.halted = False
        handles, self.put_aside = self.put_aside, []
        for handle in handles:
            handle.loop.run_soon(handle)

    def before_step(self) -> None:
        """Count a step; called by the event loop."""
        self.steps += 1
        if self.stop_step is not None and self.steps >= self.stop_step:
            act, self.stop_step, self.at_step = self.at_step, None, None
            if act is not None:
                act()
