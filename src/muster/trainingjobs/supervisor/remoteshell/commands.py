"""Commands that mpiexec runs on this node through a remote shell, as part of the attempt."""

from __future__ import annotations

import os
import queue
import select
import signal
import socket
import subprocess
from typing import TYPE_CHECKING, Any, Callable

from ..attempts.attempt import Attempt
from ..exits import signal_group
from ..processes import Child
from ..ranks.messages import send_message
from .wire import ShellRefused

if TYPE_CHECKING:
    from ..machine import Supervisor


class RemoteCommands:
    """Called from the threads that serve remote shells; starts and ends commands in the main thread."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def key(self) -> tuple[int, bytes]:
        """The newest attempt begun here, and its key while it may run commands through the remote shell of our own."""
        attempt = self._supervisor.last
        if attempt is None:
            return 0, b""
        return attempt.number, attempt.key if self._open(attempt, "supervisor") else b""

    def _open(self, attempt: Attempt | None, remote_shell: str) -> bool:
        mpi = attempt is not None and attempt.launcher == "mpi" and attempt.remote_shell == remote_shell
        return mpi and self._supervisor.state == "running"

    def start(self, command: str, pipes: tuple[int, int, int] | None = None, number: int | None = None) -> Child:
        """Run a remote command, with new pipes or with a session's of attempt `number`; waits for the main thread."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def begin() -> None:
            attempt = self._supervisor.attempt
            if attempt is None or not self._open(attempt, "sshd" if pipes else "supervisor"):
                answer.put(ShellRefused("the attempt is over"))
                return
            if number not in (None, attempt.number):
                answer.put(ShellRefused(f"attempt {number} is over"))
                return
            stdin, stdout, stderr = pipes or (subprocess.PIPE,) * 3
            try:
                argv, env = ["/bin/sh", "-c", command], self._supervisor.environment(attempt)
                child = self._supervisor.spawn(argv, env, lambda child: None, stdin=stdin, stdout=stdout, stderr=stderr)
            except OSError as error:
                answer.put(error)
                return
            attempt.roots[child], attempt.began = [], True
            answer.put(child)

        return self._main_thread(begin, answer)

    def _main_thread(self, begin: Callable[[], None], answer: queue.SimpleQueue[Any]) -> Child:
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
            # after the last rank a launcher may end without a word to what it has started (Open MPI does)
            cut = lost and attempt is not None and ours and not attempt.ranks_are_done()
            if attempt is not None and cut and self._supervisor.state == "running":
                attempt.launcher_failed((255, 0), "launcher connection lost", [])

        self._supervisor.post(end)

    # -- sshd

    def uses_sshd(self) -> bool:
        """Returns whether the image's sshd serves connections now."""
        attempt = self._supervisor.attempt
        return attempt is not None and bool(attempt.sshd) and self._open(attempt, "sshd")

    def connect(self, sock: socket.socket) -> Child:
        """Start sshd for a connection."""
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def begin() -> None:
            attempt = self._supervisor.attempt
            if attempt is None or not self.uses_sshd():
                answer.put(ShellRefused("the attempt is over"))
                return

            def ended(child: Child) -> None:
                attempt.connections.discard(child)
                child.close()

            _, log = self._supervisor.output.pipe(2, "[sshd] ")
            try:
                env = self._supervisor.environment(attempt)
                child = self._supervisor.spawn(
                    attempt.sshd, env, ended, stdin=sock.fileno(), stdout=sock.fileno(), stderr=log
                )
            except OSError as error:
                answer.put(error)
                return
            finally:
                os.close(log)
            attempt.connections.add(child)
            answer.put(child)

        return self._main_thread(begin, answer)

    def session(self, sock: socket.socket, hello: dict[str, Any], pipes: list[int]) -> None:
        """A session of sshd has begun: run its command, tell `session` how it ended."""
        try:
            stdin, stdout, stderr = pipes
            child = self.start(str(hello.get("command")), (stdin, stdout, stderr), int(hello["session"]))
        except (ShellRefused, OSError, ValueError) as error:
            send_message(sock, {"error": str(error)})
            return
        finally:
            for pipe in pipes:
                os.close(pipe)
        lost = True
        try:
            readers: list[Any] = [sock, child.ended_pipe]
            select.select(readers, [], [])
            lost = not child.ended.is_set()
            if not lost:
                send_message(sock, {"code": child.outcome()[0]})
        finally:
            self.ended(child, lost)
