"""The daemon's Unix socket: one request of the shim a connection, with open files beside it."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from muster.network.cni.answers import Answer
from muster.network.cni.invocation import Invocation, parse_document

log = logging.getLogger(__name__)

_WORKERS: Final = 8
_BACKLOG: Final = 1024
"""Requests that may wait: more than pods fit on a node. A full queue makes the shim answer code 11."""
_REQUEST_BYTES_MAX: Final = 8 * 1024 * 1024
_RECEIVED_BYTES: Final = 64 * 1024
_FILES_MAX: Final = 8
_WAIT_S: Final = 10.0
"""For each read and write: the shim never waits in between."""
_AGAIN_S: Final = 0.1
"""Wait after a connection could not be accepted, such as for lack of file descriptors."""


class CniServer:
    """Serves requests from `start` to `stop`.

    Args:
        path: the socket. Its folder is created; both are for root only.
        handle: answers a request. Several threads call it.
    """

    def __init__(self, path: Path, handle: Callable[[Invocation], Answer]) -> None:
        self._path = path
        self._handle = handle
        self._listening: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._inode = 0
        self._lifecycle = threading.Lock()  # `restore` can run while `stop` is called

    def start(self) -> None:
        """Begin to serve. The socket appears only once requests are accepted, and replaces that of an earlier process.

        Raises:
            OSError: the socket cannot be created.
        """
        with self._lifecycle:
            self._start()

    def _start(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listening.bind(str(temporary))
            temporary.chmod(0o600)
            listening.listen(_BACKLOG)
            self._inode = temporary.stat().st_ino
            temporary.rename(self._path)
        except OSError:
            listening.close()
            temporary.unlink(missing_ok=True)
            raise
        self._listening = listening
        self._stopping.clear()
        for number in range(_WORKERS):
            thread = threading.Thread(target=self._work, args=(listening,), name=f"cni-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop accepting requests, and wait for those that are being answered."""
        with self._lifecycle:
            self._stopping.set()
            self._stop()

    def restore(self) -> None:
        """Begin to serve again if something removed the socket, such as a cleanup of /run. Raises OSError."""
        with self._lifecycle:
            if not self._stopping.is_set() and not self._path.exists():
                self._stop()
                self._start()

    def _stop(self) -> None:
        if self._listening is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino == self._inode:  # otherwise the next process has taken over
                self._path.unlink()
        listening, self._listening = self._listening, None
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        listening.close()

    def _work(self, listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError as error:
                if listening is not self._listening:  # stopped
                    return
                log.warning("a connection to the CNI socket was not accepted: %s", error)
                time.sleep(_AGAIN_S)
                continue
            with connection:
                try:
                    connection.settimeout(_WAIT_S)
                    self._serve(connection)
                except (OSError, ValueError) as error:
                    log.warning("a request to the CNI socket was not answered: %s", error)
                except Exception:  # one request must not end the thread that serves later ones
                    log.exception("a request to the CNI socket was not answered")

    def _serve(self, connection: socket.socket) -> None:
        _, user, _ = struct.unpack("=3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.geteuid():
            raise PermissionError(f"user {user} may not use the CNI socket")
        descriptors: list[int] = []
        try:
            body = _received(connection, descriptors)
            invocation = Invocation(parse_document(body), descriptors, lambda: _is_closed(connection))
        except BaseException:
            for each in descriptors:
                os.close(each)
            raise
        with invocation:
            connection.sendall(self._handle(invocation).encode())


def _is_closed(connection: socket.socket) -> bool:
    """Whether the peer closed its end. One that only ended its request still reads the answer."""
    poll = select.poll()
    poll.register(connection, 0)  # POLLHUP is always reported (poll(2))
    return bool(poll.poll(0))


def _received(connection: socket.socket, descriptors: list[int]) -> bytes:
    body = bytearray()
    while True:
        part, files, flags, _ = socket.recv_fds(connection, _RECEIVED_BYTES, _FILES_MAX, socket.MSG_CMSG_CLOEXEC)
        descriptors += files
        if flags & socket.MSG_CTRUNC:
            raise ValueError("a request came with too many files")
        if not part:
            return bytes(body)
        body += part
        if len(body) > _REQUEST_BYTES_MAX:
            raise ValueError(f"a request has more than {_REQUEST_BYTES_MAX} bytes")
