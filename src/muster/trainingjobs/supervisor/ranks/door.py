"""The unix socket where the `rank` processes of this node report."""

from __future__ import annotations

import itertools
import os
import queue
import socket
import threading
from typing import Any, Callable

from ..basics import socket_name
from ..state.events import Event, RankAsks, RankEnded, RankOrphaned, RankStarted
from .messages import receive_message, send_message


class Admission:
    """The answer to a `rank` process: its environment and the write ends of its output."""

    def __init__(self, reply: dict[str, Any], pipes: tuple[int, int]) -> None:
        self.reply, self.pipes = reply, pipes


class RankDoor(threading.Thread):
    """The unix socket where `rank` processes report. Hands the main thread events, and sessions of sshd to `session`.

    A thread waits for each rank of this node.
    """

    def __init__(
        self, path: str, post: Callable[[Event], None],
        session: Callable[[socket.socket, dict[str, Any], list[int]], None],
    ) -> None:  # fmt: skip
        super().__init__(name="rank-door", daemon=True)
        self._post, self._session = post, session
        self._keys = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[Admission | None]] = {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with socket_name(path) as name:
            self._socket.bind(name)
        self._socket.listen(256)

    def admit(self, key: int, reply: dict[str, Any], pipes: tuple[int, int]) -> None:
        """Admit a `rank` process; called by the main thread."""
        self._waiting.pop(key).put(Admission(reply, pipes))

    def refuse(self, key: int) -> None:
        """Refuse a `rank` process because its attempt is over; called by the main thread."""
        self._waiting.pop(key).put(None)

    def run(self) -> None:
        """Accept connections for ever."""
        while True:
            sock, _ = self._socket.accept()
            threading.Thread(target=self._serve, args=(sock,), name="rank", daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        key = 0
        with sock:
            try:
                hello, pipes = receive_message(sock)
                if hello is not None and "session" in hello:
                    self._session(sock, hello, pipes)
                    return
                hello = hello or {}
                asked = next(self._keys)
                answer = self._waiting[asked] = queue.SimpleQueue()
                self._post(RankAsks(asked, str(hello.get("attempt")), hello.get("rank")))
                admission = answer.get()
                if admission is None:
                    return
                key = asked
                try:
                    send_message(sock, admission.reply, admission.pipes)
                finally:
                    for fd in admission.pipes:
                        os.close(fd)
                if self._follow(sock, key):
                    return
            except OSError:
                pass
        if key:
            self._post(RankOrphaned(key))

    def _follow(self, sock: socket.socket, key: int) -> bool:
        """Pass on the reports of a `rank` process. Returns whether it reported the rank's end."""
        while True:
            message, _ = receive_message(sock)
            if message is None:
                return False
            if "pid" in message:
                self._post(RankStarted(key, int(message["pid"])))
            if "status" in message:
                stopped, error = bool(message.get("stopped")), int(message.get("errno", 0))
                self._post(RankEnded(key, int(message["status"]), stopped, error))
                return True
