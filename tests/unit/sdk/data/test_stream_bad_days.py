"""Bad days of the streaming reader: damaged, missing, forbidden and changing shards."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from muster.sdk.data import BrokenShard, Skipped, Stream, stream
from muster.sdk.data.errors import Forbidden, NotFound, ObjectChanged, StoreError, Unavailable
from muster.sdk.data.skipped import LIMIT, RANGES_LIMIT, SkippedSamples
from tests.support.shardstore import ShardStore, data_set, shard_of

BATCH = 24
BAD = "shard-005.tar"
Fault = Callable[[str, int, bytes], bytes]


def flipped(key: str, start: int, data: bytes) -> bytes:
    """One byte in each 512 is wrong."""
    if key != BAD:
        return data
    damaged = bytearray(data)
    for at in range(-start % 512, len(data), 512):
        damaged[at] ^= 1
    return bytes(damaged)


def flipped_once(key: str, start: int, data: bytes, at: int = 8700) -> bytes:
    """One byte of the shard is wrong, in sample 4."""
    at -= start
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if key == BAD and 0 <= at < len(data) else data


def truncated(key: str, start: int, data: bytes) -> bytes:
    return data[: max(0, 700 - start)] if key == BAD else data


def failing(error: StoreError) -> Fault:
    def fault(key: str, start: int, data: bytes) -> bytes:
        if key == BAD:
            raise error
        return data

    return fault


def indexed(fault: Fault | None = None) -> ShardStore:
    """A data set that is indexed before the fault begins."""
    store = data_set(12, 10)
    stream(store=store, seed=0, global_batch=1).close()
    store.reads.clear()
    if fault:
        store.faults = fault
    return store


def open_streams(
    store: ShardStore,
    world_size: int,
    cursor: str | None = None,
    skipped: Sequence[Sequence[object]] = (),
    policy: str = "skip",
) -> list[Stream]:
    return [
        stream(
            store=store,
            seed=7,
            global_batch=BATCH,
            rank=rank,
            world_size=world_size,
            cursor=cursor,
            skipped=skipped,
            bad_shards=policy,
            read_ahead_bytes=100_000,
        )
        for rank in range(world_size)
    ]


def run(streams: list[Stream], batches: int) -> list[tuple[str, str]]:
    samples = []
    for _ in range(batches):
        for each in streams:
            samples += [(sample.shard, sample.key) for sample in next(each)]
    return samples


def close(streams: list[Stream]) -> list[Skipped]:
    """End the streams, and return the records of all ranks."""
    records = [record for each in streams for record in each.skipped]
    for each in streams:
        each.close()
    return records


ERRORS = [
    (flipped, BrokenShard, "sample .* has a wrong checksum"),
    (truncated, BrokenShard, "truncated in sample"),
    (failing(Forbidden("GET shard-005.tar: 403", "s3://tests/data", BAD)), Forbidden, "403"),
    (failing(NotFound("shard-005.tar does not exist", "s3://tests/data", BAD)), NotFound, "does not exist"),
]
IDS = ["flipped", "truncated", "forbidden", "missing"]


@pytest.mark.parametrize(("fault", "error", "message"), ERRORS, ids=IDS)
def test_broken_shard_fails_the_stream_and_is_named(fault: Fault, error: type[StoreError], message: str) -> None:
    streams = open_streams(indexed(fault), 1, policy="fail")
    with pytest.raises(error, match=f"{BAD}.*{message}|{message}") as caught:
        run(streams, 6)
    assert caught.value.key == BAD
    cursor = streams[0].cursor()
    with pytest.raises(error):  # the same batch again
        next(streams[0])
    assert streams[0].cursor() == cursor
    close(streams)


@pytest.mark.parametrize(("at", "name"), [(8710, " (s5/00004)"), (8700, "")], ids=["content", "header"])
def test_damaged_sample_is_named_with_its_store_and_the_fix(at: int, name: str) -> None:
    streams = open_streams(indexed(partial(flipped_once, at=at)), 1, policy="fail")
    with pytest.raises(BrokenShard) as caught:
        run(streams, 6)
    close(streams)
    assert str(caught.value) == (
        f"s3://tests/data/{BAD}: sample 4{name} has a wrong checksum: its bytes are damaged. Restore the shard, "
        "or skip damaged samples (bad_shards='skip', muster run --bad-shards skip)"
    )
    assert (caught.value.url, caught.value.key) == ("s3://tests/data", BAD)


@pytest.mark.parametrize("fault", [each[0] for each in ERRORS], ids=IDS)
def test_streaming_759_broken_shard_is_skipped_counted_and_replaced(fault: Fault) -> None:
    """All batches stay full, so that no rank waits for another one."""
    streams = open_streams(indexed(fault), 4)
    for _ in range(11):  # two epochs
        assert [len(next(each)) for each in streams] == [BATCH // 4] * 4
    assert sum(each.stats.skipped for each in streams) == 2 * 12
    skipped = SkippedSamples(close(streams))
    assert [record[:3] for record in skipped.records()] == [(0, BAD, "0-11"), (1, BAD, "0-11")]


def test_only_the_damaged_sample_of_a_shard_is_skipped() -> None:
    streams = open_streams(indexed(flipped_once), 3)
    samples = run(streams, 11)
    assert [record[:3] for record in SkippedSamples(close(streams)).records()] == [(0, BAD, "4"), (1, BAD, "4")]
    assert len({key for shard, key in samples if shard == BAD}) == 11


@pytest.mark.slow
@pytest.mark.parametrize("fault", [flipped, flipped_once])
def test_skipped_samples_are_the_same_on_replay_with_other_ranks(fault: Fault) -> None:
    """The shard is whole again in the replay, and another number of ranks reads it."""
    store = indexed(fault)
    streams = open_streams(store, 4)
    before, after = run(streams, 2), run(streams, 9)
    records = close(streams)
    store.faults = lambda key, start, data: data
    for world_size in (1, 3, 7):
        replay = open_streams(store, world_size, skipped=records)
        assert run(replay, 11) == before + after
        assert SkippedSamples(close(replay)).records() == SkippedSamples(records).records()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [flipped, flipped_once])
def test_resume_after_a_skip_continues_like_the_first_run(fault: Fault) -> None:
    store = indexed(fault)
    streams = open_streams(store, 4)
    run(streams, 3)
    cursor, records = streams[0].cursor(), [record for each in streams for record in each.skipped]
    expected = run(streams, 5)
    close(streams)
    resumed = open_streams(store, 6, cursor, records)
    assert run(resumed, 5) == expected
    close(resumed)


def test_shard_is_read_again_in_the_next_epoch() -> None:
    store = indexed(flipped)
    streams = open_streams(store, 2)
    run(streams, 6)  # 132 samples in an epoch
    records = close(streams)
    assert [record.epoch for record in records if record.epoch == 0]
    store.faults = lambda key, start, data: data
    streams = open_streams(store, 2, skipped=[record for record in records if record.epoch == 0])
    samples = run(streams, 11)
    close(streams)
    assert BAD not in {shard for shard, _ in samples[:132]}
    assert BAD in {shard for shard, _ in samples[132:]}


def test_copy_that_is_damaged_once_is_read_again() -> None:
    wrong = [BAD]

    def once(key: str, start: int, data: bytes) -> bytes:
        try:
            wrong.remove(key)  # in one step: several threads read
        except ValueError:
            return data
        return flipped(key, start, data)

    streams = open_streams(indexed(once), 1, policy="fail")
    run(streams, 6)
    assert wrong == []
    close(streams)


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_changed_shard_is_an_error_and_never_mixed_data(policy: str) -> None:
    """It is not skipped: the data set is another one than that of the cursor."""
    store = indexed()
    store.put(BAD, shard_of(5, 10, 50))
    streams = open_streams(store, 1, policy=policy)
    with pytest.raises(ObjectChanged, match=f"{BAD} is not the object that was indexed: its ETag and the bytes"):
        run(streams, 6)
    close(streams)


def test_store_that_is_away_is_an_error_even_if_broken_shards_are_skipped() -> None:
    streams = open_streams(indexed(failing(Unavailable(f"{BAD}: 503", "", BAD))), 1)
    with pytest.raises(Unavailable, match=BAD):
        run(streams, 6)
    close(streams)


@pytest.mark.slow
def test_hanging_store_is_an_error_that_names_the_shard() -> None:
    release = threading.Event()

    def hang(key: str, start: int, data: bytes) -> bytes:
        if key == BAD:
            release.wait(20)
        return data

    store = indexed(hang)
    with stream(store=store, seed=7, global_batch=132, deadline_s=3.0) as batches:
        with pytest.raises(Unavailable, match=f"{BAD}: no sample came within 3 s"):
            next(batches)
        release.set()
        assert len(next(batches)) == 132


def test_stream_fails_if_all_shards_are_broken() -> None:
    def broken(key: str, start: int, data: bytes) -> bytes:
        return data[:1] if key.endswith(".tar") else data

    streams = open_streams(indexed(broken), 1)
    with pytest.raises(BrokenShard, match="too many shards are broken"):
        next(streams[0])
    close(streams)


@pytest.mark.slow
@pytest.mark.parametrize(
    "records",
    [
        [(epoch, "other.tar", "0") for epoch in range(LIMIT)],
        [(0, "other.tar", ",".join(map(str, range(0, 2 * RANGES_LIMIT, 2))))],
    ],
    ids=["records", "ranges"],
)
def test_number_of_skipped_samples_is_bounded(records: list[tuple[object, ...]]) -> None:
    streams = open_streams(indexed(flipped), 1, skipped=records)
    with pytest.raises(BrokenShard, match=f"{BAD} is broken, and too many samples were skipped"):
        run(streams, 6)
    close(streams)


def test_records_of_ranks_are_merged_and_survive_json() -> None:
    records = [Skipped(1, "a.tar", "3-5,9", "damaged"), Skipped(1, "a.tar", "6", ""), Skipped(0, "b.tar", "0", "")]
    skipped = SkippedSamples(json.loads(json.dumps(records)))
    assert skipped.records() == [Skipped(0, "b.tar", "0", ""), Skipped(1, "a.tar", "3-6,9", "damaged")]
    assert [sample for sample in range(12) if skipped.has(1, "a.tar", sample)] == [3, 4, 5, 6, 9]
    assert not skipped.has(0, "a.tar", 3)


@pytest.mark.parametrize("row", [(1, "a"), ("x", "a", "1"), (1, "a", "1-x"), 5])
def test_unreadable_record_is_refused(row: object) -> None:
    with pytest.raises(ValueError, match="not a record of skipped samples"):
        SkippedSamples([row])  # type: ignore[list-item]
