"""Readers get the right bytes, and cost one download however many they are."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from muster.sdk.data.wire import BLOCK_BYTES, CacheUnavailable, ErrorCode, receive, send
from tests.support.bucketserver import etag_of
from tests.support.waiting import eventually
from tests.unit.data.cache.conftest import Bench


def test_many_readers_of_an_object_cost_one_download(running: Bench) -> None:
    data = os.urandom(100_000)
    key = running.put(data)
    arrived = threading.Event()

    def wait(method: str, path: str, who: str) -> None:
        arrived.wait(20)

    running.server.before = wait
    with ThreadPoolExecutor(6) as pool:
        reads = [pool.submit(running.read, key) for _ in range(6)]
        eventually("all readers wait", lambda: sum(job["readers"] for job in running.cache.status()["jobs"]) >= 6)
        arrived.set()
        assert {read.result() for read in reads} == {data}
    assert running.read(key) == data
    assert running.downloads(key) == 1


@pytest.mark.slow
def test_ranges_across_blocks_are_those_of_the_object(running: Bench) -> None:
    data = os.urandom(BLOCK_BYTES + 1000)
    key = running.put(data)
    client = running.cache.client()
    with running.open(key, client) as file:
        assert file.pread(20, BLOCK_BYTES - 10) == data[BLOCK_BYTES - 10 : BLOCK_BYTES + 10]
        file.seek(-5, os.SEEK_END)
        assert file.read() == data[-5:]
        assert file.pread(10, len(data)) == b""
        file.seek(BLOCK_BYTES - 3)
        assert [file.read(10), file.read(10)] == [data[BLOCK_BYTES - 3 :][:10], data[BLOCK_BYTES + 7 :][:10]]
    client.close()
    assert running.downloads(key) == 2


def test_changed_object_is_an_error_and_never_mixed(running: Bench) -> None:
    key = running.put(b"first version")
    assert running.read(key) == b"first version"
    client = running.cache.client()
    with running.open(key, client) as old:
        assert old.pread(5, 0) == b"first"
        running.server.objects[f"data/{key}"] = b"2nd version!!"
        assert running.read(key) == b"2nd version!!"
        assert old.read() == b"first version"
    stale = client.open_object("s3://data", running.access("carol"), key, etag_of(b"first version"), 13)
    with pytest.raises(CacheUnavailable) as caught:
        stale.read()
    assert caught.value.code == ErrorCode.CHANGED
    client.close()


def test_wrong_size_of_an_object_never_yields_its_blocks(running: Bench) -> None:
    key = running.put(b"0123456789")
    client = running.cache.client()
    short = client.open_object("s3://data", running.access(), key, etag_of(b"0123456789"), 4)
    long = client.open_object("s3://data", running.access(), key, etag_of(b"0123456789"), 40)
    assert short.read() == b"0123"
    with pytest.raises(CacheUnavailable):
        long.read()
    assert running.read(key) == b"0123456789"
    client.close()


def test_download_ends_when_its_last_reader_leaves(running: Bench) -> None:
    key = running.put(bytes(1000))
    release = threading.Event()
    running.server.before = lambda method, path, who: release.wait(20) and None
    before = running.cache.status()["used_bytes"]
    with running.cache.connect() as connection:
        send(connection, running.hello())
        assert receive(connection)[0]["ok"]
        send(connection, {"op": "block", "key": key, "etag": etag_of(bytes(1000)), "size": 1000, "index": 0})
        eventually("the download runs", lambda: running.downloads(key) == 1)
        assert running.cache.status()["used_bytes"] > before
    eventually("its room is given back", lambda: running.cache.status()["used_bytes"] == before)
    release.set()
    assert running.read(key) == bytes(1000)
    assert running.downloads(key) == 2


def test_error_of_the_store_is_not_kept(running: Bench) -> None:
    key = running.put(b"soon there")
    running.server.before = lambda method, path, who: 404
    with pytest.raises(CacheUnavailable) as caught:
        running.read(key)
    assert caught.value.code == ErrorCode.MISSING
    running.server.before = lambda method, path, who: None
    assert running.read(key) == b"soon there"


def test_two_endpoints_with_the_same_bucket_do_not_share_blocks(running: Bench) -> None:
    key = running.put(b"of this server")
    other = running.access()._replace(endpoint=running.server.address.replace("127.0.0.1", "localhost"))
    client = running.cache.client()
    assert running.read(key) == b"of this server"
    with client.open_object("s3://data", other, key, etag_of(b"of this server"), 14) as file:
        assert file.read() == b"of this server"
    client.close()
    assert running.downloads(key) == 2


@pytest.mark.slow
def test_rate_of_a_job_is_set_on_the_control_socket_only(running: Bench) -> None:
    job = f"uid:{os.getuid()}"
    assert running.cache.control(op="rate", job=job, bytes_per_s=1 << 30) == {"ok": True}
    assert {each["job"]: each["rate_bytes_per_s"] for each in running.cache.status()["jobs"]}[job] == 1 << 30
    client = running.cache.client()
    with pytest.raises(CacheUnavailable) as caught:
        client.request("s3://data", running.access(), {"op": "rate", "job": job, "bytes_per_s": 1}, 10)
    assert caught.value.code == ErrorCode.NOT_PERMITTED
    assert running.cache.control(op="rate", job=job, bytes_per_s=0) == {"ok": True}
    client.close()


@pytest.mark.slow
def test_forked_process_reads_on_connections_of_its_own(running: Bench) -> None:
    """As workers of a data loader do, which cannot use obstore after a fork."""
    first, second = running.put(b"parent"), running.put(b"child!")
    script = (
        "import os, sys; from muster.sdk.data.access import Access\n"
        "from muster.sdk.data.cache_client import CacheClient\n"
        "client, access = CacheClient(sys.argv[1]), Access(sys.argv[2], 'us-east-1', sys.argv[3])\n"
        "def read(key, etag):\n"
        "    with client.open_object('s3://data', access, key, etag, 6) as file:\n"
        "        return file.read()\n"
        "assert read(sys.argv[4], sys.argv[5]) == b'parent'\n"
        "child = os.fork()\n"
        "data = [read(key, etag) for _ in range(20) for key, etag in [sys.argv[4:6], sys.argv[6:8]]]\n"
        "assert set(data) == {b'parent', b'child!'}\n"
        "if not child:\n"
        "    os._exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "client.close()\n"
    )
    arguments = [running.cache.socket_path, running.server.address, running.access().credentials_dir]
    objects = [first, etag_of(b"parent"), second, etag_of(b"child!")]
    subprocess.run([sys.executable, "-c", script, *arguments, *objects], check=True, timeout=60)


@pytest.mark.slow
def test_threads_share_the_blocks_of_an_object(running: Bench) -> None:
    """Ranges of many blocks in any order, from several threads, and no descriptor is left open."""
    seed = os.urandom(997)
    size = 5 * BLOCK_BYTES + 100
    data = (seed * (size // len(seed) + 1))[:size]
    key = running.put(data)
    client = running.cache.client()
    starts = [number * BLOCK_BYTES + shift for number in range(5) for shift in (5, BLOCK_BYTES - 7)]
    with running.open(key, client) as file, ThreadPoolExecutor(5) as pool:
        for start, part in zip(starts * 3, pool.map(lambda start: file.pread(50, start), starts * 3), strict=True):
            assert part == data[start : start + 50]
        assert 1 <= len(open_blocks(running)) <= 4
    client.close()
    assert running.downloads(key) == 6
    assert open_blocks(running) == []


def open_blocks(running: Bench) -> list[str]:
    """Files of the cache that this process has open."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))
    return [path for path in found if path.startswith(str(running.cache.state))]
