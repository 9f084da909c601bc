"""Reads ranges of shards: from the object store, or from the node's cache."""

from __future__ import annotations

import threading

from muster.sdk.data.index import Shard
from muster.sdk.data.store import Store


class ShardFile:
    """A shard that is read by ranges. Thread-safe."""

    def pread(self, start: int, length: int) -> bytes:
        """Read a range; fewer bytes only at the shard's end. Raises StoreError."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what belongs to it."""


class ShardSource:
    """Opens shards."""

    def open(self, shard: Shard) -> ShardFile:
        """Open a shard in the version of the index. Raises StoreError; a later `pread` may raise it instead."""
        raise NotImplementedError


class Traffic:
    """Counts bytes by where they came from. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.bucket_bytes = 0
        self.cache_bytes = 0
        self.cache_errors = 0

    def add(self, bucket_bytes: int = 0, cache_bytes: int = 0, cache_errors: int = 0) -> None:
        """Add to the counts."""
        with self._lock:
            self.bucket_bytes += bucket_bytes
            self.cache_bytes += cache_bytes
            self.cache_errors += cache_errors


class StoreSource(ShardSource):
    """Reads shards from the object store."""

    def __init__(self, store: Store, traffic: Traffic) -> None:
        self._store = store
        self._traffic = traffic

    def open(self, shard: Shard) -> ShardFile:
        """Open a shard; nothing is read yet."""
        return _StoreFile(self._store, shard, self._traffic)


class _StoreFile(ShardFile):
    def __init__(self, store: Store, shard: Shard, traffic: Traffic) -> None:
        self._store = store
        self._shard = shard
        self._traffic = traffic

    def pread(self, start: int, length: int) -> bytes:
        length = min(length, self._shard.size_bytes - start)
        if length <= 0:
            return b""
        data = self._store.read(self._shard.key, start, length, self._shard.etag)
        self._traffic.add(bucket_bytes=len(data))
        return data
