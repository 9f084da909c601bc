"""Reads objects through the node cache's socket. A failure of the cache never fails a reader: it reads the bucket."""

from __future__ import annotations

import collections
import io
import os
import socket
import threading
import time
from typing import NamedTuple

from muster.sdk.data.access import Access
from muster.sdk.data.credentials import NAMES, Credentials, read_credentials
from muster.sdk.data.store import Store
from muster.sdk.data.wire import (
    BLOCK_BYTES,
    VERSION,
    ErrorCode,
    Message,
    ProtocolError,
    block_range,
    close_all,
    receive,
    send,
)

_HELLO_S = 2.0
_BASE_S = 40.0
_SLOWEST_BYTES_PER_S = 1 << 20
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_CONNECTIONS = 8
_OPEN_BLOCKS = 2


class CacheUnavailable(Exception):
    """The node cache did not give the bytes; the bucket may.

    Attributes:
        code: one of `wire.ErrorCode`; "" if the cache did not answer.
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


def cache_from_environment() -> CacheClient | None:
    """Return a client of the cache that MUSTER_CACHE_SOCKET names, or None if the pod has none."""
    path = os.environ.get("MUSTER_CACHE_SOCKET", "")
    return CacheClient(path, os.environ.get("MUSTER_CACHE_TICKET", "")) if path else None


class CacheClient:
    """Connections to the node cache of this node. Thread-safe; a forked process opens connections of its own.

    Args:
        socket_path: the cache's socket.
        ticket_path: file with the ticket of this pod's job; "" without.
    """

    def __init__(self, socket_path: str, ticket_path: str = "") -> None:
        self._path = socket_path
        self._ticket_path = ticket_path
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._idle: dict[tuple[str, Access], list[_Connection]] = {}
        self._slots = threading.Semaphore(_CONNECTIONS)
        self._down_until_s = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self.bytes_from = {"bucket": 0, "peer": 0, "disk": 0}

    def open_object(
        self, store_url: str, access: Access, key: str, etag: str, size_bytes: int, store: Store | None = None
    ) -> CachedObject:
        """Return the object as a seekable binary file.

        `store` is read where the cache fails; without it, reads then raise CacheUnavailable. Nothing is requested yet.
        """
        return CachedObject(self, store_url, access, key, etag, size_bytes, store)

    def close(self) -> None:
        """Close all idle connections."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def request(self, store_url: str, access: Access, message: Message, deadline_s: float) -> Answer:
        """Send a request on a connection for this store, and return the answer. Raises CacheUnavailable."""
        connection = self._take(store_url, access, deadline_s)
        try:
            answer, descriptors = connection.ask(message, deadline_s)
        except (OSError, EOFError, ProtocolError) as error:
            connection.close()
            self._slots.release()
            self._failed()
            raise CacheUnavailable(f"the node cache failed: {type(error).__name__}") from None
        self._give_back(store_url, access, connection)
        if "error" in answer:
            close_all(descriptors)
            raise CacheUnavailable(str(answer.get("message", "")), str(answer["error"]))
        return Answer(answer, descriptors[0] if descriptors else -1, connection)

    def _take(self, store_url: str, access: Access, deadline_s: float) -> _Connection:
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._idle, self._slots = os.getpid(), {}, threading.Semaphore(_CONNECTIONS)
            wait_s = self._down_until_s - time.monotonic()
        if wait_s > 0:
            raise CacheUnavailable("the node cache did not answer lately")
        if not self._slots.acquire(timeout=deadline_s):
            raise CacheUnavailable("all connections to the node cache are in use", ErrorCode.BUSY)
        try:
            with self._lock:
                idle = self._idle.get((store_url, access))
                if idle:
                    return idle.pop()
            return self._connect(store_url, access)
        except BaseException:
            self._slots.release()
            raise

    def _connect(self, store_url: str, access: Access) -> _Connection:
        try:
            connection = _Connection(self._path)
        except OSError as error:
            self._failed()
            raise CacheUnavailable(f"no node cache at {self._path}: {error.strerror or error}") from None
        try:
            hello = {
                "op": "hello",
                "version": VERSION,
                "store": {"url": store_url, "endpoint": access.endpoint, "region": access.region},
                "credentials": _credentials(access),
                "ticket": self._ticket(),
            }
            answer, descriptors = connection.ask(hello, _HELLO_S)
            close_all(descriptors)
        except (OSError, EOFError, ProtocolError) as error:
            connection.close()
            self._failed()
            raise CacheUnavailable(f"the node cache did not answer: {type(error).__name__}") from None
        if "error" in answer:
            connection.close()
            raise CacheUnavailable(str(answer.get("message", "")), str(answer["error"]))
        with self._lock:
            self._pause_s, self._down_until_s = _FIRST_PAUSE_S, 0.0
        return connection

    def _give_back(self, store_url: str, access: Access, connection: _Connection) -> None:
        with self._lock:
            self._idle.setdefault((store_url, access), []).append(connection)
        self._slots.release()

    def _failed(self) -> None:
        """Leave a cache that does not answer alone for a while."""
        with self._lock:
            self._down_until_s = time.monotonic() + self._pause_s
            self._pause_s = min(_LONGEST_PAUSE_S, self._pause_s * 2)

    def _ticket(self) -> str | None:
        return None


class Answer(NamedTuple):
    """An answer, its descriptor (-1 without), and the connection that holds the lease."""

    message: Message
    descriptor: int
    connection: _Connection


class _Connection:
    """A connection; one request at a time."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._ended: collections.deque[int] = collections.deque(maxlen=32)
        try:
            self._socket.settimeout(_HELLO_S)
            self._socket.connect(path)
        except BaseException:
            self._socket.close()
            raise

    def ask(self, message: Message, deadline_s: float) -> tuple[Message, list[int]]:
        self._socket.settimeout(deadline_s)
        leases = []
        while self._ended:
            leases.append(self._ended.popleft())
        if leases:
            send(self._socket, {"op": "done", "leases": leases})
        send(self._socket, message)
        return receive(self._socket)

    def end(self, lease: int) -> None:
        """End a lease with the next request."""
        self._ended.append(lease)

    def close(self) -> None:
        self._socket.close()


class _OpenBlock(NamedTuple):
    descriptor: int
    start: int
    length: int
    lease: int
    connection: _Connection


class CachedObject(io.RawIOBase):
    """One version of an object, as a seekable file without buffer. Made by `CacheClient.open_object`."""

    def __init__(
        self,
        client: CacheClient,
        store_url: str,
        access: Access,
        key: str,
        etag: str,
        size_bytes: int,
        store: Store | None,
    ) -> None:
        super().__init__()
        self._client, self._store_url, self._access = client, store_url, access
        self._key, self._etag, self._store = key, etag, store
        self.size_bytes = size_bytes
        self._position = 0
        self._lock = threading.Lock()
        self._blocks: dict[int, _OpenBlock] = {}

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position of `read`, as for any file."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size_bytes}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Return the position of `read`."""
        return self._position

    def readinto(self, buffer: object) -> int:
        """Read up to the end of a block. Raises CacheUnavailable, or a StoreError of the fallback."""
        view = memoryview(buffer).cast("B")  # type: ignore[arg-type]
        data = self.pread(len(view), self._position)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def readall(self) -> bytes:
        """Read the rest of the object. Errors as for `readinto`."""
        data = self.pread(self.size_bytes - self._position, self._position)
        self._position += len(data)
        return data

    def pread(self, length: int, offset: int) -> bytes:
        """Return bytes at an offset; fewer only at the end of the object. Thread-safe. Errors as for `readinto`."""
        parts = []
        end = min(self.size_bytes, offset + length)
        while offset < end:
            part = self._part(end - offset, offset)
            parts.append(part)
            offset += len(part)
        return b"".join(parts) if len(parts) != 1 else parts[0]

    def close(self) -> None:
        """End the leases and close the descriptors."""
        with self._lock:
            blocks, self._blocks = self._blocks, {}
        for block in blocks.values():
            _end(block)
        super().close()

    def _part(self, length: int, offset: int) -> bytes:
        index = offset // BLOCK_BYTES
        piece = block_range(self.size_bytes, index)
        length = min(length, piece.start + piece.length - offset)
        try:
            with self._lock:
                block = self._blocks.get(index) or self._open(index)
                data = os.pread(
                    block.descriptor, min(length, block.length - (offset - piece.start)), offset - piece.start
                )
            if not data:
                raise CacheUnavailable(f"block {index} of {self._key} is too short")
            return data
        except (CacheUnavailable, OSError):
            if self._store is None:
                raise
            return self._store.read(self._key, offset, length, self._etag)

    def _open(self, index: int) -> _OpenBlock:
        piece = block_range(self.size_bytes, index)
        deadline_s = _BASE_S + piece.length / _SLOWEST_BYTES_PER_S
        message = {
            "op": "block",
            "key": self._key,
            "etag": self._etag,
            "size": self.size_bytes,
            "index": index,
            "deadline_s": int(deadline_s),
        }
        answer = self._client.request(self._store_url, self._access, message, deadline_s)
        if answer.descriptor < 0:
            raise CacheUnavailable("the node cache sent no descriptor")
        block = _OpenBlock(
            answer.descriptor,
            piece.start,
            int(answer.message["length"]),
            int(answer.message["lease"]),
            answer.connection,
        )
        while len(self._blocks) >= _OPEN_BLOCKS:
            _end(self._blocks.pop(next(iter(self._blocks))))
        self._blocks[index] = block
        return block


def _end(block: _OpenBlock) -> None:
    os.close(block.descriptor)
    block.connection.end(block.lease)


def _credentials(access: Access) -> dict[str, str]:
    """The values to send: those of the folder, else those of the environment."""
    found = read_credentials(access.credentials_dir) if access.credentials_dir else Credentials(dict(os.environ))
    return {name: value for name, value in ((name, found.get(name)) for name in NAMES) if value}
