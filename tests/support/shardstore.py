"""Data sets in memory for tests of the reader, with a log of requests and with faults."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from muster.sdk.data.errors import Forbidden, ObjectChanged
from muster.sdk.data.index_store import MemoryStore
from muster.sdk.data.store import ObjectInfo


def tar_of(members: Iterable[tuple[str, bytes]], format: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar file with these members, in order."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def shard_of(number: int, samples: int, size_bytes: int = 40) -> bytes:
    """A WebDataset shard whose samples have the keys s NUMBER / INDEX."""
    return tar_of(
        (f"s{number}/{index:05d}.{extension}", f"{number}:{index}:{extension}".encode().ljust(size_bytes, b"."))
        for index in range(samples)
        for extension in ("txt", "cls")
    )


class ShardStore(MemoryStore):
    """A store in memory.

    Attributes:
        reads: number of read requests by key.
        bytes_read: number of bytes by key.
        faults: called with (key, start, bytes) of a read; returns the bytes to deliver, or raises.
        read_only: refuse writes.
    """

    url = "s3://tests/data"

    def __init__(self, objects: Mapping[str, bytes] = {}) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.bytes_read: Counter[str] = Counter()
        self.faults: Callable[[str, int, bytes], bytes] = lambda key, start, data: data
        self.read_only = False
        self._log = threading.Lock()
        for key, data in objects.items():
            super().put(key, data)

    def head(self, key: str, deadline_s: float | None = None) -> ObjectInfo:
        data = self._object(key)
        return ObjectInfo(key, len(data), hashlib.md5(data).hexdigest())

    def read(self, key: str, start: int = 0, length: int | None = None, etag: str = "") -> bytes:
        if etag and etag != self.head(key).etag:
            raise ObjectChanged(f"{key} has changed", self.url, key)
        data = self.faults(key, start, super().read(key, start, length))
        with self._log:
            self.reads[key] += 1
            self.bytes_read[key] += len(data)
        return data

    def put(self, key: str, data: bytes | str, create_only: bool = False) -> ObjectInfo:
        if self.read_only:
            raise Forbidden(f"{key}: read-only", self.url, key)
        return super().put(key, data, create_only)

    def fork(self) -> int:
        """Fork while no thread counts a read: the child has no such thread, and would wait for it for ever."""
        with self._log:
            return os.fork()

    def shards_read(self) -> set[str]:
        """Keys of the shards that were read."""
        return {key for key in self.reads if not key.startswith(".")}


def data_set(shards: int, samples: int, size_bytes: int = 40) -> ShardStore:
    """A data set of tar shards: shard-000.tar and so on, each with some samples more than the one before."""
    return ShardStore({f"shard-{k:03d}.tar": shard_of(k, samples + k % 3, size_bytes) for k in range(shards)})
