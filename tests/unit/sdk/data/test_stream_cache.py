"""The streaming reader with a node cache: it reads the bucket wherever the cache fails."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from muster.sdk.data import Access, Stats, Store, obstore_store, stream
from tests.support.nodecache import NodeCache, be_patient
from tests.support.shardstore import shard_of

OpenStore = Callable[..., Store]
SAMPLES = 4 * 20


@pytest.fixture
def url(opened: OpenStore, s3_url: str, s3: Access, monkeypatch: pytest.MonkeyPatch) -> str:
    """An indexed data set of 4 shards."""
    store = opened(s3_url, s3, 20.0)
    for number in range(4):
        store.put(f"shard-{number}.tar", shard_of(number, 20, 2000))
    stream(store=store, seed=0, global_batch=1).close()
    monkeypatch.setenv("MUSTER_DATA_URL", s3_url)
    monkeypatch.setenv("MUSTER_DATA_ENDPOINT", s3.endpoint)
    monkeypatch.setenv("MUSTER_DATA_REGION", s3.region)
    monkeypatch.setenv("MUSTER_DATA_CREDENTIALS", s3.credentials_dir)
    return s3_url


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeCache]:
    with tempfile.TemporaryDirectory(prefix="m-") as folder:  # the path of a socket must be short
        found = NodeCache(Path(folder))
        found.start()
        be_patient(monkeypatch)
        monkeypatch.setenv("MUSTER_CACHE_SOCKET", found.socket_path)
        try:
            yield found
        finally:
            found.kill()


def epoch() -> tuple[list[str], Stats]:
    with stream(seed=1, global_batch=8, epochs=1) as batches:
        return [sample.key for batch in batches for sample in batch], batches.stats  # type: ignore[attr-defined]


@pytest.mark.slow
def test_samples_come_from_the_cache_and_from_the_bucket_without_it(
    url: str, cache: NodeCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys, stats = epoch()
    assert len(set(keys)) == SAMPLES
    assert stats.cache_bytes > SAMPLES * 4000
    assert (stats.bucket_bytes, stats.cache_errors) == (0, 0)
    cache.kill()
    again, stats = epoch()
    assert again == keys
    assert stats.cache_bytes == 0
    assert stats.bucket_bytes > SAMPLES * 4000
    assert stats.cache_errors > 0


@pytest.mark.slow
def test_shards_that_were_uploaded_again_are_read_under_their_new_etags(
    url: str, cache: NodeCache, opened: OpenStore, s3: Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first read of each fails in the cache and in the bucket; then blocks come from the cache again."""
    expected, _ = epoch()
    store = opened(url, s3, 20.0)
    monkeypatch.setattr(obstore_store, "PART_BYTES", 0)  # a multipart upload, of one part
    monkeypatch.setattr(obstore_store, "_MOST_PARTS", 1)
    for number in range(4):
        key, file = f"shard-{number}.tar", tmp_path / "shard"
        file.write_bytes(store.read(key))
        old = store.head(key).etag
        store.put(key, str(file))
        assert store.head(key).etag != old
    keys, stats = epoch()
    assert keys == expected
    assert stats.cache_bytes > SAMPLES * 4000


@pytest.mark.slow
def test_cache_that_dies_during_an_epoch_does_not_fail_it(url: str, cache: NodeCache) -> None:
    with stream(seed=1, global_batch=8, epochs=2, read_ahead_bytes=0) as batches:
        first = [sample.key for _ in range(3) for sample in next(batches)]  # type: ignore[attr-defined]
        cache.kill()
        keys = first + [sample.key for batch in batches for sample in batch]  # type: ignore[attr-defined]
    assert len(set(keys[:SAMPLES])) == SAMPLES
    assert len(keys) == 2 * SAMPLES
