"""Reads ranges of shards: from the object store, or from the node's cache."""

from __future__ import annotations

import threading

from muster.sdk.data.access import Access
from muster.sdk.data.cache_client import CacheClient
from muster.sdk.data.index import Shard
from muster.sdk.data.store import Store


class ShardFile:
    """A shard that is read by ranges. Thread-safe."""

    def pread(self, start: int, length: int) -> bytes:
        """Read a range; fewer bytes only at the shard's end. Raises StoreError."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what the file holds."""


class ShardSource:
    """Opens shards."""

    def open(self, shard: Shard) -> ShardFile:
        """Open a shard in the version of its ETag. Raises StoreError; a later `pread` may raise it instead."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what belongs to all files."""


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

    @property
    def url(self) -> str:
        """The store's URL."""
        return self._store.url

    def present(self, key: str) -> Shard:
        """Ask the store for a shard's present size and ETag. Raises StoreError."""
        info = self._store.head(key)
        return Shard(key, info.size_bytes, info.etag)

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


class CacheSource(ShardSource):
    """Reads shards from the node's cache, and from the bucket where the cache fails.

    Args:
        client: of the cache.
        url: of the store.
        access: settings of the store, with which the cache proves that this reader may read it.
        bucket: reads where the cache fails.
        traffic: counts bytes.
    """

    def __init__(self, client: CacheClient, url: str, access: Access, bucket: ShardSource, traffic: Traffic) -> None:
        self._client = client
        self._url = url
        self._access = access
        self._bucket = bucket
        self._traffic = traffic

    def open(self, shard: Shard) -> ShardFile:
        """Open a shard; nothing is read yet."""
        return _CacheFile(self._client, self._url, self._access, shard, self._bucket.open(shard), self._traffic)

    def close(self) -> None:
        """Close the connections to the cache."""
        self._client.close()


class _CacheFile(ShardFile):
    def __init__(
        self, client: CacheClient, url: str, access: Access, shard: Shard, bucket: ShardFile, traffic: Traffic
    ) -> None:
        self._object = client.open_object(url, access, shard.key, shard.etag, shard.size_bytes)
        self._size_bytes = shard.size_bytes
        self._bucket = bucket
        self._traffic = traffic

    def pread(self, start: int, length: int) -> bytes:
        length = max(0, min(length, self._size_bytes - start))
        try:
            data = self._object.pread(length, start)
        except Exception:  # whatever fails in the cache must not fail the job
            data = b""
        if len(data) == length:
            self._traffic.add(cache_bytes=length)
            return data
        self._traffic.add(cache_errors=1)
        return self._bucket.pread(start, length)

    def close(self) -> None:
        """End the leases of the cache's blocks."""
        self._object.close()
