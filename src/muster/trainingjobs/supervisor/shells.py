"""Commands that mpiexec runs on this node through a remote shell, as part of the attempt."""

from __future__ import annotations

import queue
import signal
import subprocess
from typing import TYPE_CHECKING, Any

from .exits import signal_group
from .processes import Child
from .wire import ShellRefused

if TYPE_CHECKING:
    from .machine import Supervisor


class RemoteCommands:
    """Called from the threads that serve remote shells; starts and ends commands in the main thread."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def key(self) -> tuple[int, bytes]:
        """The newest attempt begun here, and its key while it may run commands."""
        attempt = self._supervisor.last
        if attempt is None:
            return 0, b""
        return attempt.number, attempt.key if self._supervisor.state == "running" and attempt.launcher == "mpi" else b""

    def start(self, command: str) -> Child:
        """Run a remote command; waits for the main thread to start it."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def begin() -> None:
            attempt = self._supervisor.attempt
            if attempt is None or not self.key()[1]:
                answer.put(ShellRefused("the attempt is over"))
                return
            pipe = subprocess.PIPE
            try:
                argv, env = ["/bin/sh", "-c", command], self._supervisor.environment(attempt)
                child = self._supervisor.spawn(argv, env, lambda child: None, stdin=pipe, stdout=pipe, stderr=pipe)
            except OSError as error:
                answer.put(error)
                return
            attempt.roots[child], attempt.began = [], True
            answer.put(child)

        self._supervisor.post(begin)
        result = answer.get()
        if isinstance(result, BaseException):
            raise result
        assert isinstance(result, Child)
        return result

    def ended(self, child: Child, lost: bool) -> None:
        """A remote command's session is over; where the connection was lost its process group goes too."""

        def end() -> None:
            attempt = self._supervisor.attempt
            if not child.ended.is_set():
                signal_group(child.pid, signal.SIGKILL)
                child.on_exit = Child.close
            else:
                child.close()
            ours = attempt is not None and attempt.roots.pop(child, None) is not None
            if attempt is not None and ours and lost and self._supervisor.state == "running":
                attempt.launcher_failed((255, 0), "launcher connection lost", [])

        self._supervisor.post(end)
