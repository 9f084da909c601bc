"""The streaming reader: the same sample sequence for any number of ranks, and across restarts."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.sdk.data import BadCursor, DecodeFailed, Sample, Stream, stream
from muster.sdk.data.index import NAME
from tests.support.shardstore import ShardStore, data_set
from tests.support.waiting import TIMEOUT_S

BATCH = 24


@pytest.fixture(scope="module")
def data() -> ShardStore:
    """12 shards with 120 + 12 samples in all, already indexed."""
    store = data_set(12, 10)
    stream(store=store, seed=0, global_batch=1).close()
    return store


@contextlib.contextmanager
def gang(store: ShardStore, world_size: int, cursor: str | None = None, **options: object) -> Iterator[list[Stream]]:
    options = {"seed": 7, "global_batch": BATCH, "read_ahead_bytes": 100_000, **options}
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(stream(store=store, rank=rank, world_size=world_size, cursor=cursor, **options))  # type: ignore[arg-type]
            for rank in range(world_size)
        ]


def step(streams: list[Stream]) -> list[tuple[int, str]]:
    """One global batch: positions and keys of all ranks."""
    parts = [next(each) for each in streams]
    assert {len(part) for part in parts} <= {BATCH // len(streams), -(-BATCH // len(streams))}
    return [(sample.position, sample.key) for part in parts for sample in part]


def run(
    store: ShardStore, world_size: int, batches: int, cursor: str | None = None
) -> tuple[list[tuple[int, str]], str]:
    with gang(store, world_size, cursor) as streams:
        samples = [sample for _ in range(batches) for sample in step(streams)]
        cursors = {each.cursor() for each in streams}
        assert len(cursors) == 1
        return samples, cursors.pop()


@pytest.fixture(scope="module")
def straight(data: ShardStore) -> list[tuple[int, str]]:
    """What one rank receives without restarts, in a bit more than three epochs."""
    return run(data, 1, 18)[0]


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(segments=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), min_size=2, max_size=5))
def test_sample_sequence_is_the_same_for_any_sequence_of_world_sizes(
    data: ShardStore, straight: list[tuple[int, str]], segments: list[tuple[int, int]]
) -> None:
    got: list[tuple[int, str]] = []
    cursor = None
    for world_size, batches in segments:
        batches = min(batches, 18 - len(got) // BATCH)
        samples, cursor = run(data, world_size, batches, cursor)
        got += samples
    assert got == straight[: len(got)]


@pytest.mark.slow
def test_8_to_6_to_8_nodes_give_the_same_samples(data: ShardStore, straight: list[tuple[int, str]]) -> None:
    first, cursor = run(data, 8, 4)
    second, cursor = run(data, 6, 5, cursor)
    third, cursor = run(data, 8, 6, cursor)
    assert first + second + third == straight[: 15 * BATCH]
    assert [position for position, _ in straight] == list(range(18 * BATCH))


def test_each_epoch_delivers_every_sample_once(straight: list[tuple[int, str]]) -> None:
    samples = sum(10 + k % 3 for k in range(12))
    for epoch in range(3):
        keys = [key for _, key in straight[epoch * samples : (epoch + 1) * samples]]
        assert len(set(keys)) == samples


@pytest.mark.slow
def test_webdataset_271_streaming_437_880_resume_continues_after_the_last_batch() -> None:
    """It neither restarts at sample 0 nor reads what came before."""
    store = data_set(64, 20, 2000)
    with gang(store, 1, lanes=2) as streams:
        before = [step(streams) for _ in range(40)]
        cursor = streams[0].cursor()
        after = step(streams)
    store.reads.clear()
    store.bytes_read.clear()
    with gang(store, 1, cursor, lanes=2, read_ahead_bytes=50_000) as streams:
        assert step(streams) == after
    assert before[0][0][0] == 0
    assert after[0][0] == 40 * BATCH
    assert len(store.shards_read()) <= 6
    read = sum(store.bytes_read[key] for key in store.shards_read())
    assert read <= 3 * (50_000 + BATCH * 5000)


def test_data_1317_cursor_is_small_and_counts_batches_that_were_received(data: ShardStore) -> None:
    """Read-ahead is far beyond the batch that the program has received."""
    with gang(data, 1) as streams:
        assert json.loads(streams[0].cursor())["position"] == 0
        step(streams)
        assert len(data.shards_read()) > 3
        cursor = streams[0].cursor()
        second = step(streams)
    assert json.loads(cursor)["position"] == BATCH
    assert len(cursor) < 250
    with gang(data, 1, cursor) as streams:
        assert step(streams) == second


def test_cursor_does_not_depend_on_ranks(data: ShardStore) -> None:
    assert run(data, 1, 6)[1] == run(data, 5, 6)[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 8}, "saved with seed 7, and the stream has 8: use 7"),
        ({"global_batch": 12}, "saved with global_batch 24, and the stream has 12"),
        ({"lanes": 3}, "saved with lanes .* 64, and the stream has 3"),
        ({"shuffle": False}, "saved with lanes .* 64, and the stream has 0"),
    ],
)
def test_cursor_of_another_stream_is_refused(data: ShardStore, change: dict[str, object], message: str) -> None:
    _, cursor = run(data, 1, 1)
    with pytest.raises(BadCursor, match=message), gang(data, 1, cursor, **change):
        pass


def test_cursor_of_another_index_is_refused(data: ShardStore) -> None:
    _, cursor = run(data, 1, 1)
    with pytest.raises(BadCursor, match="shards were added, removed or changed"), gang(data_set(11, 10), 1, cursor):
        pass


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "not the cursor of a stream"),
        ("12", "not the cursor of a stream"),
        ('{"version":1,"seed":1}', "not the cursor of a stream"),
        ('{"version":2}', "version 2, and this Muster reads version 1: update Muster"),
    ],
)
def test_damaged_or_newer_cursor_is_refused(data: ShardStore, text: str, message: str) -> None:
    with pytest.raises(BadCursor, match=message), gang(data, 1, text):
        pass


def test_cursor_with_an_impossible_epoch_is_refused(data: ShardStore) -> None:
    _, cursor = run(data, 1, 1)
    with pytest.raises(BadCursor, match="is not in epoch 5"):
        gang(data, 1, json.dumps({**json.loads(cursor), "epoch": 5})).__enter__()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"global_batch": 500}, "132 samples, fewer than one global batch of 500"),
        ({"global_batch": 0}, "global_batch must be at least 1"),
        ({"global_batch": 2, "world_size": 3, "rank": 0}, "some of the 3 ranks get no samples"),
        ({"rank": 3, "world_size": 3}, "rank 3 is not in a job of 3 ranks"),
        ({"lanes": 0}, "lanes must be at least 1"),
        ({"bad_shards": "ignore"}, '"fail" or "skip", not \'ignore\''),
        ({"format": "zip"}, "format must be"),
    ],
)
def test_unusable_arguments_are_refused(data: ShardStore, options: dict[str, object], message: str) -> None:
    store = data if "format" not in options else data_set(1, 1)
    with pytest.raises(ValueError, match=message):
        stream(store=store, **{"seed": 1, "global_batch": BATCH, **options})  # type: ignore[arg-type]


def test_stream_without_url_says_how_to_give_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MUSTER_DATA_URL", raising=False)
    with pytest.raises(ValueError, match="muster run --data URL"):
        stream(seed=1, global_batch=1)


def test_rank_and_data_come_from_the_environment(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abcd":
        with open(f"{tmp_path}/{name}.txt", "w") as file:
            file.write(name)
    monkeypatch.setenv("MUSTER_DATA_URL", str(tmp_path))
    stream(seed=1, global_batch=4, rank=0, world_size=1).close()  # stores the index
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with stream(seed=1, global_batch=4, shuffle=False) as batches:
        assert [sample.data for sample in next(batches)] == [{"txt": b"c"}, {"txt": b"d"}]


def test_finite_stream_ends_with_whole_batches_and_can_be_extended(data: ShardStore) -> None:
    with gang(data, 3, epochs=2) as streams:
        assert [len(list(each)) for each in streams] == [2 * 132 // BATCH] * 3
        assert [list(each) for each in streams] == [[]] * 3
        cursor = streams[0].cursor()
    assert json.loads(cursor)["position"] == 2 * 132 // BATCH * BATCH
    with gang(data, 2, cursor, epochs=3) as streams:
        assert step(streams)[0][0] == 2 * 132 // BATCH * BATCH


def test_short_last_batch_is_delivered_on_request(data: ShardStore) -> None:
    with gang(data, 5, epochs=1, drop_last=False) as streams:
        parts = [list(each) for each in streams]
    assert sorted(sample.position for part in parts for batch in part for sample in batch) == list(range(132))
    assert [len(part[-1]) for part in parts] == [2, 2, 3, 2, 3]


@pytest.mark.parametrize("limit", [0, 3000, 20_000])
def test_small_read_ahead_gives_the_same_samples(data: ShardStore, straight: list[tuple[int, str]], limit: int) -> None:
    """Also if a sample is larger than the bound."""
    with gang(data, 2, read_ahead_bytes=limit) as streams:
        assert [sample for _ in range(8) for sample in step(streams)] == straight[: 8 * BATCH]


@pytest.mark.slow
def test_read_ahead_stays_within_its_bound() -> None:
    store = data_set(16, 64, 10_000)
    with gang(store, 1, read_ahead_bytes=400_000) as streams:
        step(streams)
        reader = streams[0]._reader
        assert reader is not None
        for _ in range(20):
            step(streams)
            with reader._arrived:
                assert reader._bytes <= 400_000


def test_decode_runs_before_delivery_and_its_errors_name_the_sample(data: ShardStore) -> None:
    with gang(data, 1, decode=lambda sample: sample.data["cls"].split(b":")[:2]) as streams:
        assert all(len(each) == 2 for each in next(streams[0]))

    def fail(sample: Sample) -> object:
        raise KeyError("jpg")

    message = r"cannot decode sample s\d+/\d+ of shard-\d+.tar: KeyError\('jpg'\)"
    with gang(data, 1, decode=fail, bad_shards="skip") as streams, pytest.raises(DecodeFailed, match=message):
        next(streams[0])


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "muster-data"}


def test_closed_and_forgotten_streams_end_their_threads(data: ShardStore) -> None:
    before = threads()  # of streams of other tests that failed on purpose
    with gang(data, 1) as streams:
        next(streams[0])
        running = threads() - before
        assert running
    assert not running & threads()
    with pytest.raises(ValueError, match="closed"):
        next(streams[0])
    forgotten = stream(store=data, seed=1, global_batch=BATCH)
    for _ in forgotten:
        break
    running = threads() - before
    assert running
    del forgotten
    for thread in running:
        thread.join(TIMEOUT_S)
    assert not running & threads()


def test_forked_process_continues_with_the_next_batch(data: ShardStore, straight: list[tuple[int, str]]) -> None:
    """Threads of the parent process do not exist in the child."""
    with gang(data, 1) as streams:
        step(streams)
        ours, theirs = os.pipe()
        child = data.fork()
        if not child:
            try:
                os.write(theirs, json.dumps(step(streams)).encode())
            finally:
                os._exit(0)
        os.close(theirs)
        with open(ours, "rb") as file:
            received = json.loads(file.read())
        os.waitpid(child, 0)
        expected = straight[BATCH : 2 * BATCH]
        assert [tuple(each) for each in received] == expected == step(streams)


WRITES = """
import os, sys
from muster.sdk.data import stream
from tests.support.shardstore import data_set
written = []
def hook(event, arguments):
    if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        written.append(str(arguments[0]))
    elif event in ("os.mkdir", "os.link", "os.symlink", "os.rename", "socket.bind"):
        written.append(event)
sys.dont_write_bytecode = True
sys.addaudithook(hook)
store = data_set(3, 10)
with stream(store=store, seed=7, global_batch=24, read_ahead_bytes=100_000) as batches:
    next(batches)
print(written, [name for name in sys.modules if name in ("_multiprocessing", "_posixshmem")])
print(*(found.key for found in store.list() if found.key.startswith(".")))
"""


@pytest.mark.slow
def test_streaming_546_nothing_is_written_but_the_index() -> None:
    """No lock files, shared memory or folders that another user or a killed process could leave behind."""
    found = subprocess.run([sys.executable, "-c", WRITES], capture_output=True, text=True, check=True, timeout=60)
    files, objects = found.stdout.splitlines()
    assert files == "[] []"
    assert NAME in objects.split()
    assert all(key.startswith(".muster-index/") for key in objects.split())


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_parts_of_worker_processes_add_up_to_the_batch_of_the_rank(data: ShardStore, workers: int) -> None:
    """The adapter for PyTorch divides each batch of a rank among its workers."""
    with gang(data, 2) as ranks, contextlib.ExitStack() as stack:
        options = {"seed": 7, "global_batch": BATCH, "store": data, "rank": 1, "world_size": 2}
        parts = [stack.enter_context(Stream(part=(number, workers), **options)) for number in range(workers)]  # type: ignore[arg-type]
        for _ in range(4):
            next(ranks[0])
            assert [sample for part in parts for sample in next(part)] == next(ranks[1])
            assert {part.cursor() for part in parts} == {ranks[1].cursor()}


def test_small_samples_are_read_ahead_by_a_number_of_batches(data: ShardStore) -> None:
    """All of a small data set fits the bound many times."""
    with gang(data, 1, read_ahead_bytes=1 << 30) as streams:
        for batch in range(30):
            step(streams)
            reader = streams[0]._reader
            assert reader is not None
            with reader._arrived:
                assert max(reader._ready, default=0) <= (batch + 1 + 32) * BATCH + 132
