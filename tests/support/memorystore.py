"""An object store in memory, with the interface of `muster.sdk.data`, that fails and dies as a test says."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import BinaryIO

from muster.sdk.data.errors import AlreadyExists, NotFound, ObjectChanged
from muster.sdk.data.store import ObjectInfo, Store


class Killed(BaseException):
    """The process was killed at this operation: code that handles errors must not see it as one."""


class Bucket:
    """The objects. `before` is called with the operation and the full key, and may raise."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.before: Callable[[str, str], object] = lambda operation, key: None
        self.operations: list[tuple[str, str]] = []
        self._lock = threading.RLock()
        self._version = 0

    def call(self, operation: str, key: str) -> None:
        with self._lock:
            self.operations.append((operation, key))
        self.before(operation, key)

    def write(self, key: str, data: bytes, create_only: bool = False) -> str:
        with self._lock:
            if create_only and key in self.objects:
                raise AlreadyExists(f"{key} exists", "memory", key)
            self._version += 1
            self.objects[key] = (data, f"v{self._version}")
            return self.objects[key][1]

    def kill_after(self, operations: int) -> None:
        """Die at the operation after so many that change objects, and at each one that follows."""
        left = operations

        def count(operation: str, key: str) -> None:
            nonlocal left
            if operation in ("put", "delete"):
                left -= 1
            if left < 0:
                raise Killed(f"{operation} {key}")

        self.before = count

    def revive(self) -> None:
        self.before = lambda operation, key: None


class MemoryStore(Store):
    """A prefix of a bucket."""

    def __init__(self, bucket: Bucket, url: str) -> None:
        self.url, self._bucket = url, bucket
        self._prefix = url.partition("://")[2].rstrip("/") + "/"

    def _get(self, operation: str, key: str) -> tuple[bytes, str]:
        self._bucket.call(operation, self._prefix + key)
        found = self._bucket.objects.get(self._prefix + key)
        if found is None:
            raise NotFound(f"{self.url}/{key} does not exist", self.url, key)
        return found

    def head(self, key: str, deadline_s: float | None = None) -> ObjectInfo:
        data, etag = self._get("head", key)
        return ObjectInfo(key, len(data), etag)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._bucket.call("list", self._prefix + prefix)
        for key, (data, etag) in sorted(self._bucket.objects.items()):
            if key.startswith(self._prefix + prefix):
                yield ObjectInfo(key[len(self._prefix) :], len(data), etag)

    def read(self, key: str, start: int = 0, length: int | None = None, etag: str = "") -> bytes:
        data, now = self._get("read", key)
        if etag and etag != now:
            raise ObjectChanged(f"{self.url}/{key} changed", self.url, key)
        return data[start:] if length is None else data[start : start + length]

    def read_into(self, key: str, file: BinaryIO, start: int = 0, length: int | None = None, etag: str = "") -> int:
        data = self.read(key, start, length, etag)
        for at in range(0, len(data), 1 << 16):
            file.write(data[at : at + (1 << 16)])
        return len(data)

    def put(self, key: str, data: bytes | str, create_only: bool = False) -> ObjectInfo:
        self._bucket.call("put", self._prefix + key)
        if isinstance(data, str):
            with open(data, "rb") as file:
                data = file.read()
        return ObjectInfo(key, len(data), self._bucket.write(self._prefix + key, data, create_only))

    def delete(self, key: str) -> None:
        self._bucket.call("delete", self._prefix + key)
        self._bucket.objects.pop(self._prefix + key, None)

    def close(self) -> None:
        pass
