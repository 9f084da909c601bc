"""The index of a data set: built once, by several ranks, with bounded memory, and resumable."""

from __future__ import annotations

import gzip
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from muster.sdk.data import BrokenShard, indexing, stream
from muster.sdk.data import spans as span
from muster.sdk.data.errors import Forbidden, StoreError, Unavailable
from muster.sdk.data.formats.tar import TarFormat
from muster.sdk.data.index import FOLDER, NAME, Shard
from muster.sdk.data.index_store import MemoryStore, open_index
from tests.support.shardstore import ShardStore, data_set, shard_of, tar_of


def units(store: MemoryStore) -> list[str]:
    return [info.key for info in store.list(FOLDER + "unit-")]


def test_index_is_built_once_and_then_read_without_listing_or_reading_shards() -> None:
    store = data_set(5, 10)
    with stream(store=store, seed=1, global_batch=8) as first:
        digest = first.index.digest
    store.reads.clear()
    with stream(store=store, seed=2, global_batch=4) as second:
        assert second.index.digest == digest
        assert store.shards_read() == set()
        assert store.reads == {NAME: 1}
        assert sum(second.index.counts) == sum(10 + k % 3 for k in range(5))


def test_index_is_the_same_wherever_and_by_however_many_ranks_it_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "UNIT_SHARDS", 2)
    alone = open_index(data_set(9, 4), None, "auto", 0, 1, False, "")[0].digest
    shared = data_set(9, 4)
    with ThreadPoolExecutor(4) as ranks:
        found = list(ranks.map(lambda rank: open_index(shared, None, "auto", rank, 4, False, "")[0].digest, range(4)))
    assert found == [alone] * 4
    assert len(units(shared)) == 5


def test_ranks_divide_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rank begins with units of its own, and uses those that others have finished."""
    monkeypatch.setattr(indexing, "UNIT_SHARDS", 1)
    store = data_set(8, 4)
    builders = [indexing.Builder(store, store, "tar", rank, 2, False) for rank in range(2)]
    builders[0].build()
    first = {key: count for key, count in store.reads.items() if key.endswith(".tar")}
    store.delete(NAME)
    builders[1].build()
    assert {key: count for key, count in store.reads.items() if key.endswith(".tar")} == first
    assert len(first) == 8


def test_killed_build_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "UNIT_SHARDS", 2)
    store = data_set(10, 4)

    def away(key: str, start: int, data: bytes) -> bytes:
        if key == "shard-006.tar":
            raise Unavailable("away", "", key)
        return data

    store.faults = away
    with pytest.raises(Unavailable):
        open_index(store, None, "auto", 0, 1, True, "")
    assert len(units(store)) == 3
    store.faults = lambda key, start, data: data
    store.reads.clear()
    index, _ = open_index(store, None, "auto", 0, 1, False, "")
    assert store.shards_read() == {f"shard-{k:03d}.tar" for k in range(6, 10)}
    assert sum(index.counts) == sum(4 + k % 3 for k in range(10))


def test_unit_of_a_changed_shard_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "UNIT_SHARDS", 1)
    store = data_set(3, 4)
    open_index(store, None, "auto", 0, 1, False, "")
    store.put("shard-001.tar", shard_of(1, 9))
    store.delete(NAME)
    store.reads.clear()
    index, _ = open_index(store, None, "auto", 0, 1, False, "")
    assert store.shards_read() == {"shard-001.tar"}
    assert list(index.counts) == [4, 9, 6]


def test_damaged_unit_is_built_again() -> None:
    store = data_set(3, 4)
    digest = open_index(store, None, "auto", 0, 1, False, "")[0].digest
    store.delete(NAME)
    for damaged in (b"", b"garbage" * 9):
        store.put(units(store)[0], damaged)
        assert open_index(store, None, "auto", 0, 1, False, "")[0].digest == digest
        store.delete(NAME)


def test_index_that_is_damaged_or_of_another_version_is_an_error_that_names_it() -> None:
    store = data_set(2, 4)
    older, newer = (f"version {version}, and this Muster reads version 2" for version in (1, 3))
    for data, message in ((b"garbage", "damaged"), (_version(1), older), (_version(3), newer)):
        store.put(NAME, data)
        with pytest.raises(StoreError, match=rf"index\.json\.gz cannot be used: .*{message}.*Delete it"):
            open_index(store, None, "auto", 0, 1, False, "")


def _version(number: int) -> bytes:
    return gzip.compress(b'{"version": %d}' % number)


def test_damaged_spans_are_an_error_that_names_the_shard() -> None:
    store = data_set(1, 4)
    open_index(store, None, "auto", 0, 1, False, "")
    name = units(store)[0]
    data = store.read(name)
    index, _ = open_index(store, None, "auto", 0, 1, False, "")
    damaged = span.Spans([0, 10, 20, 30], [10, 20, 30, 40], [0] * 4).encode().ljust(index.spans[0].length, b"\0")
    for spans, reason in ((data[-index.spans[0].length : -3] + b"xyz", "data check"), (damaged, "wrong checksum")):
        store.put(name, data[: index.spans[0].start] + spans)
        message = rf"shard-000\.tar: its part of the index, .* is missing or damaged \(.*{reason}.*\)"
        with stream(store=store, seed=1, global_batch=1) as batches, pytest.raises(StoreError, match=message):
            next(batches)


@pytest.mark.parametrize("where", ["checkpoints", "memory", "given"])
def test_read_only_bucket(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is stored with the checkpoints, or in the place that is given, else it is kept in memory."""
    store = data_set(2, 4)
    store.read_only = True
    monkeypatch.delenv("MUSTER_CHECKPOINT_DIR", raising=False)
    if where == "checkpoints":
        monkeypatch.setenv("MUSTER_CHECKPOINT_DIR", str(tmp_path / "ckpt"))
    place = str(tmp_path / "index") if where == "given" else None
    with stream(store=store, seed=1, global_batch=4, index=place) as batches:
        assert len(next(batches)) == 4
    store.reads.clear()
    stream(store=store, seed=1, global_batch=4, index=place).close()
    assert (store.shards_read() != set()) == (where == "memory")
    stored = {"checkpoints": tmp_path / "ckpt" / NAME, "given": tmp_path / "index" / NAME, "memory": None}[where]
    assert stored is None or stored.exists()
    assert units(store) == []


def test_given_place_that_is_read_only_is_an_error() -> None:
    place = ShardStore()
    place.read_only = True
    with pytest.raises(Forbidden, match="the index cannot be stored in s3://tests/data"):
        stream(store=data_set(1, 4), seed=1, global_batch=1, index=place)


def test_broken_shard_in_the_index_fails_or_is_left_out() -> None:
    objects = {"a.tar": shard_of(0, 5), "b.tar": shard_of(1, 5)[:3000], "c.tar": b"", "d.tar": tar_of([])}
    with pytest.raises(BrokenShard, match=r"s3://tests/data/b\.tar: truncated.*\. Restore the shard, or skip"):
        stream(store=ShardStore(objects), seed=1, global_batch=1)
    store = ShardStore(objects)
    with stream(store=store, seed=1, global_batch=5, epochs=1, bad_shards="skip") as batches:
        assert [len(batch) for batch in batches] == [5]
        assert list(batches.index.broken) == ["b.tar"]
        assert list(batches.index.counts) == [5, 0, 0, 0]
    with pytest.raises(BrokenShard, match=r"b\.tar: truncated.*1 broken shards in the index\)\. Restore"):
        stream(store=store, seed=1, global_batch=1, bad_shards="fail")


def test_data_set_without_samples_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no objects below s3://tests/data: check the URL"):
        stream(store=ShardStore(), seed=1, global_batch=1)
    with pytest.raises(ValueError, match=r"no shards of format 'tar' among the 1 objects below s3://tests/data: check"):
        stream(store=ShardStore({"a.txt": b"x"}), seed=1, global_batch=1, format="tar")
    with pytest.raises(ValueError, match="no samples in the 1 shards"):
        stream(store=ShardStore({"a.tar": tar_of([])}), seed=1, global_batch=1)


@pytest.mark.slow
def test_index_of_100_000_small_objects_is_short() -> None:
    """It is made from the list of objects alone, and takes a few bytes each."""
    store = ShardStore({f"class-{k % 100:02d}/{k:06d}.jpg": b"x" for k in range(100_000)})
    with stream(store=store, seed=1, global_batch=256, shuffle=True) as batches:
        assert store.shards_read() == set()
        assert len({sample.key for sample in next(batches)}) == 256
        assert len(store.shards_read()) < 256 * 80
    assert len(MemoryStore.read(store, NAME)) < 40 * 100_000


def test_memory_does_not_grow_with_the_size_of_a_shard() -> None:
    largest = 0

    class Sparse(ShardStore):
        """A shard of 1 GiB, which holds one sample and is made while it is read."""

        def read(self, key: str, start: int = 0, length: int | None = None, etag: str = "") -> bytes:
            nonlocal largest
            assert length is not None
            largest = max(largest, length)
            head = archive[start : start + length]
            return head + bytes(min(length, size - start) - len(head))

    archive = tar_of([("1.bin", b"")])[:512]
    content = 64 << 20
    header = bytearray(archive)
    header[124:136] = b"%011o\0" % content
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    archive, size = bytes(header), 512 + content + 1024
    found = indexing.scan(Sparse(), TarFormat(), Shard("a.tar", size, ""))
    assert list(found.ends) == [512 + content]
    assert largest <= 16 << 20


def test_spans_are_compact() -> None:
    """10,000 shards of 10,000 samples: less than 1 GB in all, and 80 KB for a shard that is read."""
    starts = [k * 110_592 for k in range(10_000)]
    checksums = [hash((k, 1)) & 0xFFFFFFFF for k in range(10_000)]
    found = span.Spans(starts, [start + 110_592 for start in starts], checksums)
    data = found.encode()
    assert len(data) < 80_000
    decoded = span.decode(data, 10_000)
    assert list(decoded.starts) == starts
    assert list(decoded.ends) == list(found.ends)
    assert list(decoded.checksums) == checksums


def test_ranks_wait_for_the_first_one_to_list_a_data_set_that_needs_no_scan() -> None:
    store = ShardStore({f"{k}.txt": b"x" for k in range(10)})
    listed = []

    class Counting(ShardStore):
        url = store.url

        def list(self, prefix: str = ""):  # type: ignore[no-untyped-def]
            listed.append(prefix)
            return store.list(prefix)

        read, put = staticmethod(store.read), staticmethod(store.put)  # type: ignore[assignment]

    started = threading.Event()

    def later(rank: int) -> str:
        started.set()
        return open_index(Counting(), None, "auto", rank, 3, False, "")[0].digest

    with ThreadPoolExecutor(3) as ranks:
        others = [ranks.submit(later, rank) for rank in (1, 2)]
        started.wait(10)
        first = open_index(Counting(), None, "auto", 0, 3, False, "")[0].digest
        assert [each.result(20) for each in others] == [first] * 2
    assert listed.count("") == 1
