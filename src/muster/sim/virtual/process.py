"""Simulated operating-system processes: groups of tasks that are halted, resumed or killed together.

A task belongs to the process in whose context it was started. Its child tasks, timers and callbacks belong to the
same process. If a process is halted or dead, the event loop does not run its callbacks. So no code of a killed
process runs, not even `finally`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar, copy_context
from typing import Any

from muster.sim.virtual.handle import Handle

PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Process:
    """A group of tasks that stands for one operating-system process.

    Attributes:
        name: the name of the process, for traces.
        halted: whether the process is halted: none of its callbacks run.
        dead: whether the process was killed. It cannot be resumed.
        steps: the number of callbacks that have run.
        stop_step: the number of the step before which `at_step` is called.
        at_step: a function that a test or a fault uses to halt or kill the process at a chosen step. Called once.
        put_aside: callbacks that became due while the process was halted.
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
        """Start a task in this process."""
        loop = asyncio.get_running_loop()
        return loop.create_task(work, name=self.name, context=self._context.copy())

    def kill(self) -> None:
        """Kill the process at once, as SIGKILL or a power failure does."""
        self.halted = self.dead = True

    def halt(self) -> None:
        """Halt the process, as SIGSTOP or a paused virtual machine does.

        Answers and timers wait until it is resumed.
        """
        self.halted = True

    def resume(self) -> None:
        """Resume a halted process. Callbacks that became due while it was halted run now, in the same order."""
        if self.dead or not self.halted:
            return
        self.halted = False
        handles, self.put_aside = self.put_aside, []
        for handle in handles:
            handle.loop.run_soon(handle)

    def before_step(self) -> None:
        """Count a step, and call `at_step` if this is its step. The event loop calls this before each callback."""
        self.steps += 1
        if self.stop_step is not None and self.steps >= self.stop_step:
            act, self.stop_step, self.at_step = self.at_step, None, None
            if act is not None:
                act()
