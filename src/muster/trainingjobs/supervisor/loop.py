"""The main thread of `run`: passes events to the state machine, and its instructions to the executor."""

from __future__ import annotations

import contextlib
import os
import queue
import time

from .controller.link import ControllerLink
from .executor import Executor
from .ranks.door import RankDoor
from .ranks.nodecache import NodeCache
from .remoteshell.commands import RemoteCommands
from .remoteshell.server import ShellServer
from .settings import Settings
from .state import events
from .state.events import Event
from .state.machine import Machine

BUSY_S, QUIET_S = 0.05, 1.0  # between two ticks


class Supervisor:
    """A worker's supervisor. It runs in the main thread; other threads pass events to it through `post`."""

    def __init__(self, settings: Settings, folder: str) -> None:
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self.post = self._events.put
        self.machine = Machine()
        self.commands = RemoteCommands(self.post)
        self.door = RankDoor(os.path.join(folder, "ranks"), self.post, self.commands.session)
        self.shells = ShellServer(settings, self.commands)
        self.cache = NodeCache(os.environ.get("MUSTER_CACHE_SOCKET", ""))
        self.link = ControllerLink(
            settings, lambda directive: self.post(events.Directed(directive)), self.cache.report
        )  # fmt: skip
        about = {"shellPort": self.shells.port, "address": settings.address}
        self.executor = Executor(
            settings, folder, self.door, self.commands, lambda body: self.link.report({**body, **about}), self.wake,
            self.cache.follow,
        )  # fmt: skip

    def run(self) -> int:
        """Run until the controller directs it to exit. Returns the exit code."""
        self.handle(events.Started())
        for thread in (self.executor.output, self.door, self.shells, self.cache, self.link):
            thread.start()
        while not self.machine.over:
            with contextlib.suppress(queue.Empty):
                event = self._events.get(timeout=BUSY_S if self.machine.busy else QUIET_S)
                if event is not None:
                    self.handle(event)
            self.tick()
        return self.machine.exit_code

    def wake(self) -> None:
        """Make the main thread check processes and folders now."""
        self.post(None)

    def terminate(self) -> None:
        """Handle a SIGTERM."""
        self.post(events.Terminated(self.link.in_contact))

    def tick(self) -> None:
        """Pass events of processes and folders to the machine, then the time."""
        for event in self.executor.reap():
            self.handle(event)
        for event in self.executor.gone(self.machine.orphans()):
            self.handle(event)
        for event in self.executor.checkpoints(time.monotonic()):
            self.handle(event)
        self.handle(events.Tick())

    def handle(self, event: Event) -> None:
        """Pass an event to the machine, and execute its instructions.

        The answer of each one is handled before the next one.
        """
        todo = self.machine.handle(event, time.monotonic(), time.time())
        self.commands.open = self.machine.remote_shell()
        for instruction in todo:
            for answer in self.executor.carry_out(instruction):
                self.handle(answer)
