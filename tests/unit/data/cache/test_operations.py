"""Operations of the sockets: a store without obstore, what is cached, eviction, and clients that send nonsense."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import muster
from muster.sdk.data.cached_store import CachedStore
from muster.sdk.data.errors import AlreadyExists, Forbidden, NotFound, ObjectChanged, Unavailable, WrongStore
from muster.sdk.data.wire import MAX_FRAME_BYTES, STATUS, ErrorCode, encode, receive, send
from tests.support.bucketserver import etag_of
from tests.support.waiting import eventually
from tests.unit.data.cache.conftest import Bench


@pytest.fixture
def store(running: Bench) -> Any:
    store = CachedStore("s3://data/deep/er", running.access(), running.cache.socket_path, 20)
    yield store
    store.close()


def test_store_through_the_cache_puts_reads_lists_and_deletes(running: Bench, store: CachedStore) -> None:
    info = store.put("a/one", b"first")
    assert (info.key, info.size_bytes, info.etag) == ("a/one", 5, etag_of(b"first"))
    assert running.server.objects["data/deep/er/a/one"] == b"first"
    store.put("a/two", b"")
    assert store.head("a/one").size_bytes == 5
    assert (store.read("a/one"), store.read("a/one", 1, 2), store.read("a/two")) == (b"first", b"ir", b"")
    assert [(found.key, found.size_bytes) for found in store.list("a/")] == [("a/one", 5), ("a/two", 0)]
    with pytest.raises(ObjectChanged):
        store.read("a/one", etag="another")
    store.delete("a/one")
    store.delete("a/one")
    with pytest.raises(NotFound):
        store.head("a/one")


def test_create_only_put_through_the_cache_refuses_a_second_one(store: CachedStore) -> None:
    store.put("manifest", b"mine", create_only=True)
    with pytest.raises(AlreadyExists):
        store.put("manifest", b"theirs", create_only=True)
    assert store.read("manifest") == b"mine"
    store.delete("manifest")


@pytest.mark.slow
def test_large_file_is_put_from_disk_and_read_into_a_file(running: Bench, store: CachedStore, tmp_path: Path) -> None:
    data = os.urandom(33 << 20)
    (tmp_path / "shard").write_bytes(data)
    store.put("shard", str(tmp_path / "shard"))
    assert running.server.objects["data/deep/er/shard"] == data
    with (tmp_path / "copy").open("wb") as file:
        assert store.read_into("shard", file, 5) == len(data) - 5
    assert (tmp_path / "copy").read_bytes() == data[5:]
    eventually("the temporary file is gone", lambda: not running.cache.files("partial"))
    store.delete("shard")


def test_list_of_many_objects_comes_in_pages(running: Bench, store: CachedStore) -> None:
    expected = [f"many/{number:04}" for number in range(600)]
    for key in expected:
        running.server.objects[f"data/deep/er/{key}"] = b""
    assert [found.key for found in store.list("many/")] == expected
    for key in expected:
        del running.server.objects[f"data/deep/er/{key}"]


def test_errors_of_the_store_keep_their_kind(running: Bench) -> None:
    bob = CachedStore("s3://data", running.access("bob"), running.cache.socket_path, 20)
    for attempt in (lambda: bob.head("x"), lambda: bob.put("x", b"1"), lambda: list(bob.list())):
        with pytest.raises(Forbidden):
            attempt()
    bob.close()
    local = CachedStore("file:///etc", running.access(), running.cache.socket_path, 20)
    with pytest.raises(WrongStore):
        local.read("passwd")
    gone = CachedStore("s3://data", running.access(), str(running.folder / "nothing.sock"), 1)
    with pytest.raises(Unavailable):
        gone.head("x")


def test_listed_objects_are_evicted_by_store_and_prefix(running: Bench) -> None:
    key, other = running.put(b"gone soon"), running.put(b"stays")
    assert (running.read(key), running.read(other)) == (b"gone soon", b"stays")
    found = {entry["key"]: entry for entry in running.cache.control(op="ls", prefix="object-")["objects"]}
    assert (found[key]["size"], found[key]["blocks"], found[key]["cached_bytes"]) == (9, 1, 9)
    assert running.server.address in found[key]["store"]
    answer = running.cache.control(op="evict", store="s3://another", prefix=key)
    assert (answer["blocks"], answer["kept"]) == (0, 0)
    answer = running.cache.control(op="evict", store=found[key]["store"], prefix=key)
    assert answer["blocks"] == 1
    assert answer["bytes"] > 9
    assert (running.read(key), running.read(other)) == (b"gone soon", b"stays")
    assert (running.downloads(key), running.downloads(other)) == (2, 1)


def test_warm_brings_a_block_here_without_a_reader(running: Bench) -> None:
    key = running.put(b"warmed")
    with running.cache.connect() as connection:
        send(connection, running.hello())
        receive(connection)
        send(connection, {"op": "warm", "key": key, "etag": etag_of(b"warmed"), "size": 6, "index": 0})
        answer, descriptors = receive(connection)
        assert (answer["length"], answer["source"], descriptors) == (6, "bucket", [])
    assert running.read(key) == b"warmed"
    assert running.downloads(key) == 1


def test_status_has_all_fields_and_shows_a_reader_only_its_own_job(running: Bench) -> None:
    key = running.put(b"counted")
    before = running.cache.status()
    own = f"uid:{os.getuid()}"
    bytes_before = next((job["bytes"] for job in before["jobs"] if job["job"] == own), {"bucket": 0, "disk": 0})
    assert (running.read(key), running.read(key)) == (b"counted", b"counted")
    after = running.cache.status()
    assert after.keys() == {*STATUS, "ok"}
    (job,) = (job for job in after["jobs"] if job["job"] == own)
    assert job["bytes"]["bucket"] - bytes_before["bucket"] == 7
    assert job["bytes"]["disk"] - bytes_before["disk"] == 7
    assert (after["hits"] - before["hits"], after["misses"] - before["misses"]) == (1, 1)
    assert "other" in {job["job"] for job in after["jobs"]}
    with running.cache.connect() as connection:
        send(connection, {"op": "status"})
        assert {job["job"] for job in receive(connection)[0]["jobs"]} <= {own}


def test_control_socket_is_for_its_owner(running: Bench) -> None:
    """It is not in the folder that pods mount: root in a container passes its mode."""
    assert (running.cache.sockets / "cache.sock").stat().st_mode & 0o777 == 0o666
    assert (running.cache.state / "control.sock").stat().st_mode & 0o777 == 0o600
    assert running.cache.state.stat().st_mode & 0o777 == 0o700
    assert [file.name for file in running.cache.sockets.iterdir()] == ["cache.sock"]


REQUESTS = [
    {"op": "block", "key": "x", "etag": "e", "size": 10, "index": 1},
    {"op": "block", "key": "x", "etag": "", "size": 10, "index": 0},
    {"op": "block", "key": "../x", "etag": "e", "size": 10, "index": 0},
    {"op": "block", "key": "x" * 5000, "etag": "e", "size": 10, "index": 0},
    {"op": "block", "key": "x", "etag": "e", "size": -1, "index": 0},
    {"op": "block", "key": "x", "etag": "e", "size": True, "index": 0},
    {"op": "block", "key": ["x"], "etag": "e", "size": 1, "index": 0},
    {"op": "block"},
    {"op": "nothing"},
    {"op": 7},
    {"op": "hello", "version": 1, "store": {"url": "s3://data"}},
    {"op": "list", "prefix": 3},
    {"op": "credentials", "credentials": {"AWS_ACCESS_KEY_ID": 1}},
]


def test_malformed_requests_are_answered_and_the_connection_is_kept(running: Bench) -> None:
    with running.cache.connect() as connection:
        send(connection, running.hello())
        assert receive(connection)[0]["ok"]
        for request in REQUESTS:
            send(connection, request)
            assert receive(connection)[0]["error"] == ErrorCode.BAD_REQUEST, request
        send(connection, {"op": "done", "leases": [1, 99, -3]})
        send(connection, {"op": "status"})
        assert receive(connection)[0]["ok"]


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", MAX_FRAME_BYTES + 1),
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 3) + b"\xff\xfe\xfd",
        encode({"op": "block", "key": "x"})[:-1],
    ],
)
def test_nonsense_ends_only_its_own_connection(running: Bench, data: bytes) -> None:
    with running.cache.connect() as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            assert connection.recv(1) == b""
    key = running.put(b"served")
    assert running.read(key) == b"served"


def test_other_operations_before_hello_are_refused(running: Bench) -> None:
    with running.cache.connect() as connection:
        for op in ("block", "head", "list", "delete", "put", "credentials"):
            send(connection, {"op": op, "key": "x", "etag": "e", "size": 1, "index": 0})
            assert receive(connection)[0]["error"] == ErrorCode.NOT_PERMITTED


def test_descriptors_that_a_client_sends_are_closed(running: Bench) -> None:
    assert running.cache.process is not None
    folder = Path(f"/proc/{running.cache.process.pid}/fd")
    with running.cache.connect() as connection, open(os.devnull, "rb") as file:
        send(connection, running.hello())
        receive(connection)
        before = len(list(folder.iterdir()))
        for _ in range(20):
            socket.send_fds(connection, [encode({"op": "status"})], [file.fileno()])
            assert receive(connection)[0]["ok"]
        assert len(list(folder.iterdir())) <= before + 2


@pytest.mark.slow
def test_no_descriptor_stays_open_after_reads(running: Bench) -> None:
    assert running.cache.process is not None
    folder = Path(f"/proc/{running.cache.process.pid}/fd")
    keys = [running.put(f"{number}".encode()) for number in range(5)]
    for key in keys:
        running.read(key)
    before = len(list(folder.iterdir()))
    for key in keys * 6:
        running.read(key)
    eventually("descriptors are closed", lambda: len(list(folder.iterdir())) <= before + 2)


def oldest_python() -> str:
    """Python 3.8 if it is here, else the one that runs this test."""
    for path in [shutil.which("python3.8"), *map(str, Path.home().glob(".pyenv/versions/3.8.*/bin/python"))]:
        if path and subprocess.run([path, "--version"], check=False, capture_output=True).returncode == 0:
            return path
    return sys.executable


@pytest.mark.slow
def test_image_without_obstore_uses_the_socket(running: Bench) -> None:
    script = (
        "import sys; sys.modules['obstore'] = None\n"
        "from muster.sdk.data import Access, open_store\n"
        "store = open_store('s3://data/old', Access(sys.argv[2], 'us-east-1', sys.argv[3]), cache=sys.argv[1])\n"
        "store.put('key', b'old image')\n"
        "print(type(store).__name__, store.read('key', 4).decode(), [each.key for each in store.list()])\n"
        "store.delete('key')\n"
    )
    arguments = [running.cache.socket_path, running.server.address, running.access().credentials_dir]
    source = str(Path(muster.__file__).parents[1])
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": source, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [oldest_python(), "-c", script, *arguments], check=False, capture_output=True, text=True, env=environment
    )
    assert (done.stdout, done.returncode) == ("CachedStore image ['key']\n", 0), done.stderr
