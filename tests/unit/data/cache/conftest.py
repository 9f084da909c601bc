from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from muster.sdk.data.access import Access
from muster.sdk.data.cache_client import CacheClient
from muster.sdk.data.cached_object import CachedObject
from muster.sdk.data.store import Store
from muster.sdk.data.wire import VERSION
from tests.support.bucketserver import BucketServer, bucket_server, etag_of
from tests.support.nodecache import SECRET, NodeCache, access, be_patient, node_cache

NUMBERS = itertools.count()


class Bench(NamedTuple):
    """A bucket server, a node cache, and a folder of credentials."""

    server: BucketServer
    cache: NodeCache
    folder: Path

    def access(self, key: str = "alice") -> Access:
        return access(self.folder, self.server.address, key)

    def hello(self, key: str = "alice", url: str = "s3://data") -> dict[str, Any]:
        """The first message of a connection of one's own."""
        store = {"url": url, "endpoint": self.server.address, "region": "us-east-1"}
        credentials = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": SECRET}
        return {"op": "hello", "version": VERSION, "store": store, "credentials": credentials}

    def put(self, data: bytes, bucket: str = "data") -> str:
        """Add an object, and return its new key."""
        key = f"object-{next(NUMBERS)}"
        self.server.objects[f"{bucket}/{key}"] = data
        return key

    def open(
        self, key: str, client: CacheClient, who: str = "alice", bucket: str = "data", store: Store | None = None
    ) -> CachedObject:
        data = self.server.objects[f"{bucket}/{key}"]
        return client.open_object(f"s3://{bucket}", self.access(who), key, etag_of(data), len(data), store)

    def read(self, key: str, who: str = "alice", bucket: str = "data") -> bytes:
        """Read an object through the cache, as a new reader."""
        client = self.cache.client()
        try:
            with self.open(key, client, who, bucket) as file:
                return file.read()
        finally:
            client.close()

    def downloads(self, key: str, bucket: str = "data") -> int:
        return self.server.counts[f"GET {bucket}/{key}"]


@pytest.fixture(scope="module")
def server() -> Iterator[BucketServer]:
    with bucket_server() as server:
        server.rights = {"alice": ("data", "shared"), "bob": ("shared",), "carol": ("data", "shared")}
        yield server


@pytest.fixture(scope="module")
def running(server: BucketServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """For tests that neither end the daemon nor fill its disk."""
    folder = tmp_path_factory.mktemp("cache")
    with node_cache(folder) as cache:
        running = Bench(server, cache, folder)
        running.access()
        yield running


@pytest.fixture
def bench(server: BucketServer, tmp_path: Path) -> Iterator[Bench]:
    """With a daemon of the test's own."""
    with node_cache(tmp_path) as cache:
        yield Bench(server, cache, tmp_path)


@pytest.fixture(autouse=True)
def calm(server: BucketServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    be_patient(monkeypatch)
    yield
    server.before = lambda method, path, key: None
