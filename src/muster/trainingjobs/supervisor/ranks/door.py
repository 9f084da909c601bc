"""Ranks as `run` sees them, and the unix socket where their shims report."""

from __future__ import annotations

import functools
import os
import queue
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Callable

from ..basics import socket_name
from ..exits import signal_group
from .messages import receive_message, send_message
from .output import Stream

if TYPE_CHECKING:
    from ..machine import Supervisor


class Rank:
    """One rank on this node, as `run` sees it."""

    def __init__(self, number: int, out: Stream, err: Stream) -> None:
        self.number, self.out, self.err = number, out, err
        self.pid = 0  # also its process group
        self.alive = True
        self.exec_error = 0  # errno of a command that could not be executed
        self.signalled = False  # by us, or stopped by the launcher: its end is then not a failure of its own
        self.orphaned_at: float | None = None  # when its `rank` process was stopped by the launcher

    def signal(self, number: int) -> None:
        """Signal the rank's process group."""
        if self.alive and self.pid:
            self.signalled = True
            signal_group(self.pid, number)

    def trace(self) -> list[str]:
        """The newest traceback that it printed; empty if there is none."""
        return self.err.trace or self.out.trace

    def tail(self) -> list[str]:
        """The last lines it wrote: stderr, or stdout where it wrote no errors."""
        deadline = time.monotonic() + 0.5  # what was written before the exit is in the pipe already
        for stream in (self.err, self.out):
            stream.closed.wait(max(0.0, deadline - time.monotonic()))
        return list(self.err.tail) or list(self.out.tail)


class RankDoor(threading.Thread):
    """The unix socket where `rank` processes report; calls back in the main thread through `post`."""

    def __init__(self, path: str, post: Callable[[Callable[[], None]], None], supervisor: Supervisor) -> None:
        super().__init__(name="rank-door", daemon=True)
        self._post, self._supervisor = post, supervisor
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket_name(path) as name:
            self._socket.bind(name)
        self._socket.listen(256)

    def run(self) -> None:
        """Accept for ever; a thread for each rank of this node."""
        while True:
            sock, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(sock,), name="rank", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        rank: Rank | None = None
        with sock:
            try:
                hello, pipes = receive_message(sock)
                if hello is not None and "session" in hello:
                    self._supervisor.commands.session(sock, hello, pipes)
                    return
                answer: queue.SimpleQueue[tuple[Rank, dict[str, Any], tuple[int, int]] | None] = queue.SimpleQueue()
                self._post(lambda: answer.put(self._supervisor.rank_begins(hello or {})))
                accepted = answer.get()
                if accepted is None:
                    return
                rank, reply, fds = accepted
                try:
                    send_message(sock, reply, fds)
                finally:
                    for fd in fds:
                        os.close(fd)
                while True:
                    message, _ = receive_message(sock)
                    if message is None:
                        break
                    if "pid" in message:
                        rank.pid = int(message["pid"])
                    if "status" in message:
                        rank.signalled = rank.signalled or bool(message.get("stopped"))
                        rank.exec_error = int(message.get("errno", 0))
                        self._post(functools.partial(self._supervisor.rank_ended, rank, int(message["status"])))
                        return
            except OSError:
                pass
        if rank is not None:
            self._post(functools.partial(self._supervisor.rank_orphaned, rank))
