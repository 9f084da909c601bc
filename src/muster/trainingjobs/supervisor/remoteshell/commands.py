"""Commands that mpiexec runs on this node through a remote shell, as part of the attempt."""

from __future__ import annotations

import itertools
import os
import queue
import select
import socket
import subprocess
from typing import Any, Callable

from ..processes import Child
from ..ranks.messages import send_message
from ..state.events import CommandAsked, CommandOver, ConnectionAsked, Event
from ..state.machine import RemoteShell
from .wire import ShellRefused

_PIPE = subprocess.PIPE


class Request:
    """A request to start a command, or sshd for a connection, that waits for the main thread."""

    def __init__(self, command: str, pipes: tuple[int, int, int]) -> None:
        self.command, self.pipes = command, pipes
        self.answer: queue.SimpleQueue[Child | Exception] = queue.SimpleQueue()


class RemoteCommands:
    """Starts and ends commands of remote shells.

    Threads of remote shells call it, and the main thread does the work.
    """

    def __init__(self, post: Callable[[Event], None]) -> None:
        self._post = post
        self.open = RemoteShell()  # replaced by the main thread
        self._numbers = itertools.count(1)
        self._requests: dict[int, Request] = {}

    def take(self, number: int) -> Request:
        """Return a request that is about to be answered; called by the main thread."""
        return self._requests.pop(number)

    def key(self) -> tuple[int, bytes]:
        """Return the newest attempt on this node, and its key while our remote shell may run its commands."""
        open_to = self.open
        return open_to.attempt, open_to.key

    def start(self, command: str, pipes: tuple[int, int, int] | None = None, attempt: int | None = None) -> Child:
        """Run a remote command with new pipes or those of an sshd session. Waits for the main thread."""
        number, request = next(self._numbers), Request(command, pipes or (_PIPE, _PIPE, _PIPE))
        return self._ask(number, request, CommandAsked(number, "sshd" if pipes else "supervisor", attempt))

    def _ask(self, number: int, request: Request, event: Event) -> Child:
        self._requests[number] = request
        self._post(event)
        result = request.answer.get()
        if isinstance(result, Exception):
            raise result
        return result

    def ended(self, child: Child, lost: bool) -> None:
        """End the session of a remote command, and kill its process group if it still runs."""
        self._post(CommandOver(child.key, lost))

    # -- sshd

    def uses_sshd(self) -> bool:
        """Returns whether the image's sshd serves connections now."""
        return self.open.sshd

    def connect(self, sock: socket.socket) -> Child:
        """Start sshd for a connection."""
        number, fd = next(self._numbers), sock.fileno()
        return self._ask(number, Request("", (fd, fd, _PIPE)), ConnectionAsked(number))

    def session(self, sock: socket.socket, hello: dict[str, Any], pipes: list[int]) -> None:
        """Run the command of an sshd session, and send its exit code to `session`."""
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
