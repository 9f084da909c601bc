"""What the daemon survives: kills, a second daemon, damaged files, and disks that are full or broken."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.sdk.data import cache_client
from muster.sdk.data.stores import open_store
from muster.sdk.data.wire import CacheUnavailable, receive, send
from tests.support.bucketserver import etag_of
from tests.support.nodecache import NodeCache, node_cache
from tests.support.waiting import eventually
from tests.unit.data.cache.conftest import Bench


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_flipped_bits_are_never_served(running: Bench, data: st.DataObject) -> None:
    """Any bit of any file of the cache changes between two reads: bytes, checksum, name, owner or length."""
    content = data.draw(st.binary(min_size=1, max_size=2000))
    key = running.put(content)
    before = set(running.cache.files())
    assert running.read(key) == content
    (file,) = set(running.cache.files()) - before
    for _ in range(data.draw(st.integers(1, 3))):
        stored = bytearray(file.read_bytes())
        position = data.draw(st.integers(0, len(stored) - 1))
        stored[position] ^= 1 << data.draw(st.integers(0, 7))
        file.chmod(0o600)
        file.write_bytes(stored)
        assert running.read(key) == content
        assert running.read(key, "carol") == content


@pytest.mark.slow
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32))
def test_files_that_are_cut_or_swapped_are_never_served(running: Bench, seed: int) -> None:
    choose = random.Random(seed)
    contents = [choose.randbytes(choose.randrange(1, 3000)) for _ in range(3)]
    keys = [running.put(content) for content in contents]
    before = set(running.cache.files())
    assert [running.read(key) for key in keys] == contents
    files = sorted(set(running.cache.files()) - before)
    first, second = choose.sample(files, 2)
    first.chmod(0o600)
    if choose.random() < 0.5:
        os.truncate(first, choose.randrange(first.stat().st_size))
    else:
        first.write_bytes(second.read_bytes())
    assert [running.read(key) for key in keys] == contents


@pytest.mark.slow
def test_issue_2137_cache_is_kept_through_kills_and_restarts(bench: Bench) -> None:
    """GoogleCloudPlatform/gcsfuse 2137: the cache was lost on a remount."""
    key, other = bench.put(b"kept" * 100), bench.put(b"damaged")
    assert (bench.read(key), bench.read(other)) == (b"kept" * 100, b"damaged")
    partial = bench.cache.state / "partial" / "left-by-a-kill"
    bench.cache.kill()
    partial.write_bytes(b"half a block")
    for file in bench.cache.files():
        if b"damaged" in file.read_bytes():
            file.chmod(0o600)
            file.write_bytes(file.read_bytes().replace(b"damaged", b"DAMAGED", 1))
    bench.cache.start()
    assert not partial.exists()
    assert (bench.read(key), bench.read(other)) == (b"kept" * 100, b"damaged")
    assert (bench.downloads(key), bench.downloads(other)) == (1, 2)
    bench.cache.stop()
    bench.cache.start()
    assert bench.read(key) == b"kept" * 100
    assert bench.downloads(key) == 1


@pytest.mark.slow
def test_kill_during_downloads_leaves_only_whole_blocks(bench: Bench) -> None:
    contents = {bench.put(os.urandom(200_000)): None for _ in range(4)}
    reached, release = threading.Semaphore(0), threading.Event()

    def wait(method: str, path: str, who: str) -> None:
        reached.release()
        release.wait(20)

    bench.server.before = wait
    connections = []
    for key in contents:
        connection = bench.cache.connect()
        connections.append(connection)
        data = bench.server.objects[f"data/{key}"]
        send(connection, bench.hello())
        assert receive(connection)[0]["ok"]
        send(connection, {"op": "block", "key": key, "etag": etag_of(data), "size": len(data), "index": 0})
    for _ in contents:
        assert reached.acquire(timeout=20)
    release.set()
    bench.cache.kill()
    for connection in connections:
        connection.close()
    bench.server.before = lambda method, path, who: None
    bench.cache.start()
    assert bench.cache.files("partial") == []
    for key in contents:
        assert bench.read(key) == bench.server.objects[f"data/{key}"]


@pytest.mark.slow
def test_wrong_clock_does_not_lose_the_cache(bench: Bench) -> None:
    """Files of the year 2100 and of 1970, as after a clock that jumped."""
    key = bench.put(b"timeless")
    assert bench.read(key) == b"timeless"
    for time_s in (4_102_444_800, 0):
        bench.cache.stop()
        for file in bench.cache.files():
            os.utime(file, (time_s, time_s))
        bench.cache.start()
        assert bench.read(key) == b"timeless"
    assert bench.downloads(key) == 1


@pytest.mark.slow
def test_second_daemon_on_a_folder_refuses(running: Bench, tmp_path: Path) -> None:
    second = NodeCache(tmp_path, "--size=1Gi", "--floor=0")
    second.state.symlink_to(running.cache.state)
    with pytest.raises(AssertionError, match="another daemon uses the folder"):
        second.start()
    assert second.process is not None
    assert second.process.wait(20) == 2
    key = running.put(b"still served")
    assert running.read(key) == b"still served"


@pytest.mark.slow
def test_reader_uses_the_bucket_while_the_daemon_is_dead_and_the_cache_when_it_is_back(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_client, "_LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr(cache_client, "_FIRST_PAUSE_S", 0.1)
    first, second, third = (bench.put(f"number {number}".encode()) for number in range(3))
    client = bench.cache.client()
    store = open_store("s3://data", bench.access())

    def read(key: str) -> bytes:
        with bench.open(key, client, store=store) as file:
            return file.read()

    assert read(first) == b"number 0"
    bench.cache.kill()
    assert read(second) == b"number 1"
    with pytest.raises(CacheUnavailable), bench.open(second, client) as file:
        file.read()
    bench.cache.start()

    def served() -> bool:
        read(third)
        return bench.cache.status()["misses"] > 0

    eventually("the cache is used again", served)
    assert client.bytes_from["bucket"] >= 24
    client.close()
    store.close()


@pytest.mark.slow
def test_reader_uses_the_bucket_when_the_daemon_hangs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_client, "SILENCE_S", 0.3)
    monkeypatch.setattr(cache_client, "HELLO_S", 0.3)
    key, other = bench.put(b"first"), bench.put(b"second")
    client = bench.cache.client()
    store = open_store("s3://data", bench.access())
    with bench.open(key, client, store=store) as file:
        assert file.read() == b"first"
    bench.cache.signal(signal.SIGSTOP)
    with bench.open(other, client, store=store) as file:
        assert file.read() == b"second"
    client.close()
    store.close()


@contextlib.contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """A file system of its own in memory."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs root, to mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_disk_that_fills_up_during_a_download_does_not_fail_the_reader(bench: Bench, tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "full" / "state", "size=4m") as disk,
        node_cache(tmp_path / "full", "--size=1Gi", "--floor=0") as cache,
    ):
        full = bench._replace(cache=cache)
        key, other = full.put(os.urandom(1 << 20)), full.put(b"small")

        def fill(method: str, path: str, who: str) -> None:
            with contextlib.suppress(OSError), (disk / "filler").open("wb") as file:
                while True:
                    file.write(bytes(1 << 16))
                    file.flush()

        full.server.before = fill
        assert full.read(key) == full.server.objects[f"data/{key}"]
        full.server.before = lambda method, path, who: None
        assert full.cache.status()["reason"] == "ENOSPC"
        assert full.read(other) == b"small"
        assert full.cache.files() == []


@pytest.mark.slow
def test_read_only_disk_is_bypassed_and_readers_still_share_a_download(bench: Bench, tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "broken" / "state", "size=64m") as disk,
        node_cache(tmp_path / "broken", "--size=1Gi", "--floor=0") as cache,
    ):
        broken = bench._replace(cache=cache)
        cached, key = broken.put(b"cached before"), broken.put(b"not cached")
        assert broken.read(cached) == b"cached before"
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert broken.read(key) == b"not cached"
        assert broken.cache.status()["reason"] == "EROFS"
        assert broken.read(cached) == b"cached before"
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["", "partial", "blocks"])
def test_readers_use_the_bucket_when_a_part_of_the_folder_was_removed(bench: Bench, part: str) -> None:
    cached, key = bench.put(b"cached before"), bench.put(b"new")
    assert bench.read(cached) == b"cached before"
    shutil.rmtree(bench.cache.state / part)
    assert (bench.read(key), bench.read(cached)) == (b"new", b"cached before")


@pytest.mark.slow
def test_full_disk_is_left_to_others_and_blocks_are_kept_in_memory(bench: Bench, tmp_path: Path) -> None:
    """The floor lies above what is free: nothing is written, and one download still serves all waiting readers."""
    with node_cache(tmp_path / "floor", "--size=1Gi", "--floor=4000Ti", "--memory=3000") as cache:
        full = bench._replace(cache=cache)
        key, large = full.put(b"x" * 2000), full.put(b"y" * 4000)
        client = cache.client()
        with full.open(key, client) as file:
            assert file.read() == b"x" * 2000
            with pytest.raises(CacheUnavailable) as caught, full.open(key, client) as second:
                second.read()
            assert caught.value.code == "busy"  # the first reader's block takes the memory
        assert full.read(key) == b"x" * 2000
        with pytest.raises(CacheUnavailable), full.open(large, client) as file:
            file.read()
        client.close()
        assert cache.files() == []
        assert cache.status()["state"] == "ok"


@pytest.mark.slow
def test_eviction_spares_blocks_in_use(bench: Bench, tmp_path: Path) -> None:
    with node_cache(tmp_path / "small", "--size=9000", "--floor=0") as cache:
        small = bench._replace(cache=cache)
        keys = [small.put(bytes([number]) * 2000) for number in range(6)]
        client = cache.client()
        with small.open(keys[0], client) as used:
            assert used.pread(1, 0) == b"\0"
            for key in keys[1:]:
                assert small.read(key)[:1] == bytes([keys.index(key)])
            assert cache.status()["used_bytes"] <= 9000
            listed = {entry["key"]: entry["in_use"] for entry in cache.control(op="ls")["objects"]}
            assert listed.pop(keys[0]) == 1
            assert keys[5] in listed
            assert keys[1] not in listed
        assert small.read(keys[0]) == bytes(2000)
        client.close()
        assert small.downloads(keys[0]) == 1
