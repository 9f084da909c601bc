"""An object store whose requests the node cache sends, with this pod's credentials. For images without obstore."""

from __future__ import annotations

import os
import random
import time
from typing import Callable, Iterator, TypeVar

from muster.sdk.data.access import Access
from muster.sdk.data.cache_client import CacheClient, CacheUnavailable
from muster.sdk.data.errors import (
    AlreadyExists,
    Forbidden,
    NotFound,
    ObjectChanged,
    StoreError,
    Unavailable,
    WrongStore,
)
from muster.sdk.data.store import ChunkedStore, ObjectInfo
from muster.sdk.data.wire import ErrorCode, Message

T = TypeVar("T")
_CHUNK_BYTES = 8 << 20
_FIRST_PAUSE_S = 0.2
_LONGEST_PAUSE_S = 5.0
_REQUEST_S = 40.0
_LIST_S = 130.0
_SLOWEST_BYTES_PER_S = 256 << 10

_ERRORS = {
    ErrorCode.MISSING: NotFound,
    ErrorCode.FORBIDDEN: Forbidden,
    ErrorCode.EXISTS: AlreadyExists,
    ErrorCode.CHANGED: ObjectChanged,
    ErrorCode.WRONG_STORE: WrongStore,
    ErrorCode.BAD_REQUEST: StoreError,
    ErrorCode.REFUSED: StoreError,
}


class CachedStore(ChunkedStore):
    """A store behind the node cache's socket.

    Args:
        url: of the bucket, or of a prefix in it.
        access: endpoint, region and credentials. They go to the node cache, which keeps them in memory.
        socket_path: the node cache's socket.
        deadline_s: time for each call; calls that move many bytes get more.
    """

    def __init__(self, url: str, access: Access, socket_path: str, deadline_s: float) -> None:
        self.url = url
        self._access = access
        self._deadline_s = deadline_s
        self._client = CacheClient(socket_path, os.environ.get("MUSTER_CACHE_TICKET", ""))

    def __repr__(self) -> str:
        return f"CachedStore({self.url!r})"

    def head(self, key: str, deadline_s: float | None = None) -> ObjectInfo:
        """Return the object's size and version. Raises NotFound, Forbidden, WrongStore, Unavailable."""
        return _info(key, self._ask(key, {"op": "head", "key": key}, _REQUEST_S, deadline_s))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose keys begin with the prefix, sorted by key, with one page in memory."""
        after, more = "", True
        while more:
            answer = self._ask("", {"op": "list", "prefix": prefix, "after": after}, _LIST_S)
            for found in answer["objects"]:
                yield _info(found["key"], found)
                after = found["key"]
            more = bool(answer["more"])

    def put(self, key: str, data: bytes | str, create_only: bool = False) -> ObjectInfo:
        """Write bytes, or the local file at a path (str).

        Raises AlreadyExists if `create_only` and the object exists.
        """
        size = os.path.getsize(data) if isinstance(data, str) else len(data)
        request = {"op": "put", "key": key, "size": size, "create_only": create_only}
        limit_s = _REQUEST_S + size / _SLOWEST_BYTES_PER_S
        tries = 0

        def upload() -> Message:
            nonlocal tries
            tries += 1
            return self._client.upload(self.url, self._access, request, data, limit_s)

        try:
            return _info(key, self._repeat(key, upload, self._deadline_s + limit_s))
        except AlreadyExists:
            # The answer to an earlier try may be lost: the same bytes are this call's own.
            if tries == 1:
                raise
            info = self.head(key)
            if info.size_bytes != size or self.read(key, etag=info.etag) != _bytes(data):
                raise
            return info

    def delete(self, key: str) -> None:
        """Delete the object. A missing object is not an error."""
        self._ask(key, {"op": "delete", "key": key}, _REQUEST_S)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def chunks(self, key: str, start: int, length: int | None, etag: str) -> Iterator[bytes]:
        """Yield the bytes of a range in order. Errors as for `read`."""
        if start < 0 or (length is not None and length < 0):
            raise ValueError(f"start ({start}) and length ({length}) must not be negative")
        info = self.head(key)
        if etag and info.etag != etag.strip('"'):
            raise ObjectChanged(f"{self.url}/{key}: its ETag differs. Read it again from the start", self.url, key)
        end = info.size_bytes if length is None else min(start + length, info.size_bytes)
        with self._client.open_object(self.url, self._access, key, info.etag, info.size_bytes) as file:
            while start < end:
                chunk = self._repeat(key, lambda: file.pread(min(_CHUNK_BYTES, end - start), start), self._deadline_s)  # noqa: B023
                yield chunk
                start += len(chunk)

    def _ask(self, key: str, message: Message, request_s: float, deadline_s: float | None = None) -> Message:
        def ask() -> Message:
            return self._client.request(self.url, self._access, message, request_s).message

        return self._repeat(key, ask, self._deadline_s if deadline_s is None else deadline_s)

    def _repeat(self, key: str, action: Callable[[], T], deadline_s: float) -> T:
        """Repeat after temporary failures, also of the node cache itself, which may be restarting."""
        end_s = time.monotonic() + deadline_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return action()
            except CacheUnavailable as error:
                kind = _ERRORS.get(error.code, Unavailable)
                if kind is not Unavailable or time.monotonic() + pause_s > end_s:
                    raise kind(str(error), self.url, key) from None
            time.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(_LONGEST_PAUSE_S, pause_s * 2)


def _bytes(data: bytes | str) -> bytes:
    if isinstance(data, str):
        with open(data, "rb") as file:
            return file.read()
    return bytes(data)


def _info(key: str, found: Message) -> ObjectInfo:
    return ObjectInfo(key, found["size"], found["etag"], found.get("version", ""), found.get("modified", 0.0))
