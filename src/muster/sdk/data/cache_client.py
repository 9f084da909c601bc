"""Connections to the node cache. If the cache fails, readers use the bucket: it never fails a job."""

from __future__ import annotations

import collections
import json
import os
import socket
import threading
import time
import weakref
from typing import BinaryIO, Callable

from muster.sdk.data.access import Access
from muster.sdk.data.cached_object import CachedObject
from muster.sdk.data.credentials import NAMES, Credentials, read_credentials
from muster.sdk.data.obstore_clients import endpoint_of_environment
from muster.sdk.data.store import Store
from muster.sdk.data.wire import (
    VERSION,
    Answer,
    CacheUnavailable,
    ErrorCode,
    Message,
    ProtocolError,
    close_all,
    receive,
    send,
    short_address,
)

HELLO_S = 2.0
SILENCE_S = 6.0
"""A cache that works on a request says so every second. After this much silence it counts as dead."""
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
_CONNECTIONS = 8
_PART_BYTES = 1 << 20
_REFUSED_S = 60.0
_BROKEN = (OSError, EOFError, ProtocolError)
_ALL: weakref.WeakSet[CacheClient] = weakref.WeakSet()


def cache_from_environment() -> CacheClient | None:
    """Return a client of the cache that MUSTER_CACHE_SOCKET names, or None if the pod has none."""
    path = os.environ.get("MUSTER_CACHE_SOCKET", "")
    return CacheClient(path, os.environ.get("MUSTER_CACHE_TICKET", "")) if path else None


class CacheClient:
    """The node cache of this node, for any number of threads. A forked process opens connections of its own.

    Args:
        socket_path: the cache's socket.
        ticket_path: file with the ticket of this pod's job; "" without.

    Attributes:
        bytes_from: bytes of the blocks that this client got, by source: "bucket", "peer" or "disk".
    """

    def __init__(self, socket_path: str, ticket_path: str = "") -> None:
        self._path = socket_path
        self._ticket_path = ticket_path
        self._idle: dict[tuple[str, Access], list[_Connection]] = {}
        self._begin()
        _ALL.add(self)
        self._down_until_s = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._refused: dict[tuple[str, Access], tuple[float, CacheUnavailable]] = {}
        self.bytes_from = {"bucket": 0, "peer": 0, "disk": 0}

    def _begin(self) -> None:
        """Begin without connections: at first, and in a forked process, where those of the parent are closed."""
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(_CONNECTIONS)
        self.close()

    def open_object(
        self, store_url: str, access: Access, key: str, etag: str, size_bytes: int, store: Store | None = None
    ) -> CachedObject:
        """Return the object as a seekable binary file. Nothing is requested yet.

        Args:
            store_url: of the store; the key is relative to it.
            access: endpoint, region and credentials.
            key: the object.
            etag: its version, from `Store.head` or `Store.list`.
            size_bytes: its length.
            store: read where the cache fails. Without it, such reads raise CacheUnavailable.
        """

        def request(message: Message, deadline_s: float) -> Answer:
            return self.request(store_url, access, message, deadline_s)

        return CachedObject(request, self.count, key, etag, size_bytes, store)

    def count(self, source: str, size_bytes: int) -> None:
        """Add to `bytes_from`."""
        with self._lock:
            self.bytes_from[source] = self.bytes_from.get(source, 0) + size_bytes

    def close(self) -> None:
        """Close all idle connections."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for connection in connections:
                connection.close()

    def request(self, store_url: str, access: Access, message: Message, deadline_s: float) -> Answer:
        """Send a request for this store, and return the answer. Raises CacheUnavailable."""
        return self._exchange(store_url, access, deadline_s, lambda each: each.ask(message, deadline_s))

    def upload(self, store_url: str, access: Access, message: Message, data: bytes | str, deadline_s: float) -> Message:
        """Send a `put` with bytes, or with the file at a path (str). Raises CacheUnavailable, OSError of the file."""
        return self._exchange(
            store_url, access, deadline_s, lambda each: each.upload(message, data, deadline_s)
        ).message

    def _exchange(
        self,
        store_url: str,
        access: Access,
        deadline_s: float,
        exchange: Callable[[_Connection], tuple[Message, list[int]]],
    ) -> Answer:
        connection = self._take(store_url, access, deadline_s)
        try:
            connection.refresh(_credentials(access))
            answer, descriptors = exchange(connection)
        except BaseException as error:
            connection.close()
            self._slots.release()
            if not isinstance(error, _BROKEN):
                raise
            self._failed()
            raise CacheUnavailable(f"the node cache failed: {type(error).__name__}") from None
        self._give_back(store_url, access, connection)
        if "error" in answer:
            close_all(descriptors)
            raise CacheUnavailable(str(answer.get("message", "")), str(answer["error"]))

        def end_lease(lease: int) -> None:
            connection.ended.append(lease)
            self._flush(store_url, access, connection)

        return Answer(answer, descriptors[0] if descriptors else -1, end_lease)

    def _take(self, store_url: str, access: Access, deadline_s: float) -> _Connection:
        now = time.monotonic()
        with self._lock:
            refused = self._refused.get((store_url, access))
            if now < self._down_until_s:
                raise CacheUnavailable("the node cache did not answer lately")
            if refused is not None and now < refused[0]:
                raise CacheUnavailable(str(refused[1]), refused[1].code)
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
        hello, given = self._hello(store_url, access)
        try:
            connection = _Connection(self._path, given)
            try:
                answer, descriptors = connection.ask(hello, HELLO_S)
            except BaseException:
                connection.close()
                raise
        except _BROKEN as error:
            self._failed()
            raise CacheUnavailable(f"no node cache answers at {self._path}: {type(error).__name__}") from None
        close_all(descriptors)
        if "error" in answer:
            connection.close()
            raise self._refuse(store_url, access, str(answer.get("message", "")), str(answer["error"]))
        with self._lock:
            self._pause_s, self._down_until_s = _FIRST_PAUSE_S, 0.0
        return connection

    def _hello(self, store_url: str, access: Access) -> tuple[Message, dict[str, str]]:
        given = _credentials(access)
        if not given:
            # The node must not use an identity of its own for a pod, so it needs the pod's.
            raise self._refuse(store_url, access, "there are no credentials to send to the node cache")
        scheme = store_url.partition("://")[0]
        store = {
            "url": store_url,
            "endpoint": access.endpoint or endpoint_of_environment(scheme),
            "region": access.region or _region_of_environment(scheme),
        }
        hello = {"op": "hello", "version": VERSION, "store": store, "credentials": given}
        ticket = self._ticket()
        if ticket is not None:
            hello["ticket"] = ticket
        return hello, given

    def _refuse(
        self, store_url: str, access: Access, message: str, code: str = ErrorCode.WRONG_STORE
    ) -> CacheUnavailable:
        error = CacheUnavailable(message, code)
        with self._lock:
            self._refused[(store_url, access)] = (time.monotonic() + _REFUSED_S, error)
        return error

    def _ticket(self) -> object:
        """The content of the ticket file; None if there is none, or it is being written."""
        if not self._ticket_path:
            return None
        try:
            with open(self._ticket_path, encoding="utf-8") as file:
                return json.loads(file.read())
        except (OSError, ValueError):
            return None

    def _give_back(self, store_url: str, access: Access, connection: _Connection) -> None:
        with self._lock:
            self._idle.setdefault((store_url, access), []).append(connection)
        self._slots.release()

    def _flush(self, store_url: str, access: Access, connection: _Connection) -> None:
        """End leases at once if the connection is idle; otherwise its next request ends them."""
        with self._lock:
            idle = self._idle.get((store_url, access), [])
            if connection not in idle or not self._slots.acquire(blocking=False):
                return
            idle.remove(connection)
        try:
            connection.flush()
        except _BROKEN:
            connection.close()
            self._slots.release()
            self._failed()
        else:
            self._give_back(store_url, access, connection)

    def _failed(self) -> None:
        """Leave a cache that does not answer alone for a while, and forget its connections."""
        with self._lock:
            self._down_until_s = time.monotonic() + self._pause_s
            self._pause_s = min(_LONGEST_PAUSE_S, self._pause_s * 2)
        self.close()


class _Connection:
    """A connection; one request at a time. Leases in `ended` are reported by `flush` or before the next request."""

    def __init__(self, path: str, credentials: dict[str, str]) -> None:
        self.ended: collections.deque[int] = collections.deque(maxlen=32)
        self._credentials = credentials
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(HELLO_S)
            with short_address(path) as address:
                self._socket.connect(address)
        except BaseException:
            self._socket.close()
            raise

    def ask(self, message: Message, deadline_s: float) -> tuple[Message, list[int]]:
        """Send a request and return the answer. Raises OSError (TimeoutError), EOFError, ProtocolError."""
        end_s = time.monotonic() + deadline_s
        self._socket.settimeout(min(SILENCE_S, deadline_s))
        self.flush()
        send(self._socket, message)
        return self._answer(end_s)

    def flush(self) -> None:
        """Send which leases have ended. Errors as for `ask`."""
        leases = [self.ended.popleft() for _ in range(len(self.ended))]
        if leases:
            send(self._socket, {"op": "done", "leases": leases})

    def upload(self, message: Message, data: bytes | str, deadline_s: float) -> tuple[Message, list[int]]:
        """Send a `put` and its bytes. Errors as for `ask`."""
        end_s = time.monotonic() + deadline_s
        answer, descriptors = self.ask(message, deadline_s)
        if not answer.get("ready"):
            return answer, descriptors
        if isinstance(data, str):
            with open(data, "rb") as file:
                self._send_file(file, int(message["size"]))
        else:
            view = memoryview(data)
            for start in range(0, len(view), _PART_BYTES):
                self._socket.sendall(view[start : start + _PART_BYTES])
        return self._answer(end_s)

    def refresh(self, credentials: dict[str, str]) -> None:
        """Send credentials that have changed. Errors as for `ask`."""
        if credentials != self._credentials:
            self.ask({"op": "credentials", "credentials": credentials}, SILENCE_S)
            self._credentials = credentials

    def close(self) -> None:
        """Close the connection, and so end its leases."""
        self._socket.close()

    def _answer(self, end_s: float) -> tuple[Message, list[int]]:
        while True:
            answer, descriptors = receive(self._socket)
            if not answer.get("pending"):
                return answer, descriptors
            if time.monotonic() > end_s:
                raise TimeoutError

    def _send_file(self, file: BinaryIO, size: int) -> None:
        while size > 0:
            part = file.read(min(size, _PART_BYTES))
            if not part:
                raise EOFError("the file became shorter during the upload")
            self._socket.sendall(part)
            size -= len(part)


def _credentials(access: Access) -> dict[str, str]:
    """The values to send: those of the folder, else those of the environment."""
    if not access.credentials_dir:
        found = Credentials({name: os.environ[name] for name in NAMES if os.environ.get(name)})
    else:
        try:
            found = read_credentials(access.credentials_dir)
        except OSError as error:
            raise CacheUnavailable(f"cannot read {access.credentials_dir}: {error.strerror}") from None
    return {name: value for name, value in ((name, found.get(name)) for name in NAMES) if value}


def _region_of_environment(scheme: str) -> str:
    names = ("AWS_REGION", "AWS_DEFAULT_REGION") if scheme == "s3" else ()
    return next((os.environ[name] for name in names if os.environ.get(name)), "")


def _begin_in_child() -> None:
    for client in list(_ALL):
        client._begin()


os.register_at_fork(after_in_child=_begin_in_child)

__all__ = ["Answer", "CacheClient", "CacheUnavailable", "CachedObject", "cache_from_environment"]
