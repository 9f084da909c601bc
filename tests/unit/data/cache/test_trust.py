"""Who may read what the cache holds, and what no reader can do."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.sdk.data.access import Access
from muster.sdk.data.wire import CacheUnavailable, ErrorCode, receive, send
from tests.support.bucketserver import etag_of
from tests.support.nodecache import SECRET, node_cache
from tests.unit.data.cache.conftest import Bench

STEPS = st.lists(
    st.tuples(st.sampled_from(["alice", "bob", "carol"]), st.sampled_from(["data", "shared"]), st.integers(0, 2)),
    max_size=12,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS)
def test_reader_without_rights_never_gets_a_hit(running: Bench, steps: list[tuple[str, str, int]]) -> None:
    """Any reader may have brought an object here. Only readers whose credentials may read it get it."""
    keys = {
        (bucket, number): running.put(f"{bucket} {number}".encode(), bucket)
        for bucket in ("data", "shared")
        for number in range(3)
    }
    for who, bucket, number in steps:
        key = keys[bucket, number]
        if bucket in running.server.rights[who]:
            assert running.read(key, who, bucket) == f"{bucket} {number}".encode()
        else:
            with pytest.raises(CacheUnavailable) as caught:
                running.read(key, who, bucket)
            assert caught.value.code == ErrorCode.FORBIDDEN


def test_reader_without_rights_cannot_join_a_download(running: Bench) -> None:
    key = running.put(b"private")
    started, release = threading.Event(), threading.Event()

    def wait(method: str, path: str, who: str) -> None:
        if who == "alice" and path.endswith(key):
            started.set()
            release.wait(20)

    running.server.before = wait
    results: list[bytes] = []
    reading = threading.Thread(target=lambda: results.append(running.read(key)))
    reading.start()
    assert started.wait(20)
    with pytest.raises(CacheUnavailable) as caught:
        running.read(key, "bob")
    assert caught.value.code == ErrorCode.FORBIDDEN
    release.set()
    reading.join(20)
    assert results == [b"private"]


def test_wrong_secret_is_refused_though_the_key_is_right(running: Bench) -> None:
    """Two readers with the same key ID and different secrets are different readers."""
    key = running.put(b"private")
    assert running.read(key) == b"private"
    asked = running.server.counts[f"HEAD data/{key}"]
    with running.cache.connect() as connection:
        hello = running.hello()
        hello["credentials"]["AWS_SECRET_ACCESS_KEY"] = "another"
        send(connection, hello)
        assert receive(connection)[0]["ok"]
        send(connection, {"op": "warm", "key": key, "etag": etag_of(b"private"), "size": 7, "index": 0})
        receive(connection)
    assert running.server.counts[f"HEAD data/{key}"] == asked + 1  # so the store decides


@pytest.mark.parametrize(
    ("url", "endpoint", "region"),
    [
        ("s3://data", "http://169.254.169.254", "us-east-1"),
        ("s3://data", "http://[fe80::1]", "us-east-1"),
        ("s3://data", "", "evil.example/#"),
        ("s3://data", "http://127.0.0.1:1/?x", "us-east-1"),
        ("s3://data", "http://user@127.0.0.1:1", "us-east-1"),
        ("s3://data", "gopher://127.0.0.1:1", "us-east-1"),
        ("s3://da ta", "", "us-east-1"),
        ("s3://user@data", "", "us-east-1"),
        ("file:///etc", "", ""),
        ("memory://data", "", ""),
    ],
)
def test_store_that_could_deceive_the_cache_is_refused(running: Bench, url: str, endpoint: str, region: str) -> None:
    client = running.cache.client()
    file = client.open_object(url, Access(endpoint, region, running.access().credentials_dir), "passwd", "x", 10)
    with pytest.raises(CacheUnavailable) as caught:
        file.read()
    assert caught.value.code == ErrorCode.WRONG_STORE
    client.close()


@pytest.mark.slow
def test_reader_without_credentials_does_not_use_those_of_the_node(server: object, tmp_path: Path) -> None:
    """The daemon's environment holds an identity that may read; a reader without credentials is anonymous."""
    from tests.support.bucketserver import bucket_server

    with bucket_server() as bucket, node_cache(tmp_path) as cache:
        bucket.rights = {"node": ("data",)}
        bucket.objects["data/key"] = b"of the node"
        cache.stop()
        cache.start(AWS_ACCESS_KEY_ID="node", AWS_SECRET_ACCESS_KEY="secret")
        with cache.connect() as connection:
            store = {"url": "s3://data", "endpoint": bucket.address, "region": "us-east-1"}
            send(connection, {"op": "hello", "version": 1, "store": store})
            assert receive(connection)[0]["ok"]
            send(connection, {"op": "warm", "key": "key", "etag": etag_of(b"of the node"), "size": 11, "index": 0})
            assert receive(connection)[0]["error"] == ErrorCode.FORBIDDEN


def test_reader_cannot_change_cached_bytes(running: Bench) -> None:
    key = running.put(b"right")
    with running.cache.connect() as connection:
        send(connection, running.hello())
        receive(connection)
        send(connection, {"op": "block", "key": key, "etag": etag_of(b"right"), "size": 5, "index": 0})
        (descriptor,) = receive(connection)[1]
        assert fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.pwrite(descriptor, b"wrong", 0)
        with pytest.raises(OSError, match="Invalid argument"):
            os.ftruncate(descriptor, 0)
        os.close(descriptor)
    assert running.read(key) == b"right"


def test_root_that_reopens_its_descriptor_for_writing_is_noticed(running: Bench) -> None:
    if os.geteuid() != 0:
        pytest.skip("other users cannot open the file for writing")
    key = running.put(b"right")
    client = running.cache.client()
    with running.open(key, client) as file:
        assert file.pread(5, 0) == b"right"
        (block,) = file._blocks.values()
        path = f"/proc/self/fd/{block.descriptor}"
        with open(path, "r+b", buffering=0) as writable:
            writable.write(b"wrong")
    client.close()
    assert running.read(key) == b"right"
    assert running.downloads(key) == 2


@pytest.mark.slow
def test_read_only_mount_keeps_root_from_reopening_for_writing(running: Bench, tmp_path: Path) -> None:
    """In a mount namespace of its own, as in the DaemonSet: the folder is mounted a second time, read-only."""
    if os.geteuid() != 0 or subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("needs root, to mount a folder")
    state, view = tmp_path / "state", tmp_path / "view"
    state.mkdir()
    view.mkdir()
    script = 'mount --bind "$1" "$2" && mount -o remount,ro,bind "$2" && shift 2 && exec "$@"'
    with node_cache(
        tmp_path,
        "--size=1Gi",
        "--floor=0",
        f"--read-dir={view}",
        before=["unshare", "-m", "sh", "-c", script, "sh", str(state), str(view)],
    ) as cache:
        bench = running._replace(cache=cache)
        key = bench.put(b"right")
        client = cache.client()
        with bench.open(key, client) as file:
            assert file.pread(5, 0) == b"right"
            (block,) = file._blocks.values()
            with pytest.raises(OSError, match="Read-only file system"):
                open(f"/proc/self/fd/{block.descriptor}", "r+b").close()
        client.close()


@pytest.mark.slow
def test_issue_546_two_users_read_at_once(bench: Bench) -> None:
    """mosaicml/streaming 546: the first user owned the cache, and the second could not read."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to run as two users")
    key = bench.put(b"for both")
    script = (
        "import os, sys; from muster.sdk.data.access import Access\n"
        "from muster.sdk.data.cache_client import CacheClient\n"
        "from muster.sdk.data import cached_object\n"
        "os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))\n"
        "client = CacheClient(sys.argv[2])\n"
        "with client.open_object('s3://data', Access(sys.argv[3], 'us-east-1'), sys.argv[4], sys.argv[5], 8) as file:\n"
        "    print(file.read().decode())\n"
    )
    temporary = Path(tempfile.gettempdir())
    for folder in (bench.folder, *bench.folder.parents):
        if temporary in folder.parents:  # pytest's folders are private
            folder.chmod(0o755)
    arguments = [bench.cache.socket_path, bench.server.address, key, etag_of(b"for both")]
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(user), *arguments],
            stdout=subprocess.PIPE,
            env={**os.environ, "AWS_ACCESS_KEY_ID": "alice", "AWS_SECRET_ACCESS_KEY": "x"},
        )
        for user in (4001, 4002)
    ]
    assert [reader.communicate(timeout=60)[0] for reader in readers] == [b"for both\n"] * 2
    assert bench.downloads(key) == 1
    jobs = {job["job"]: job["bytes"] for job in bench.cache.status()["jobs"]}
    assert sum(jobs[f"uid:{user}"]["bucket"] for user in (4001, 4002)) == 8


@pytest.mark.slow
def test_credentials_are_in_no_text(bench: Bench) -> None:
    """Neither in the log, nor in arguments, environment, status and errors, also when the store refuses them."""
    key = bench.put(b"private")
    assert bench.read(key) == b"private"
    errors = []
    for who in ("bob", SECRET[:10]):
        with pytest.raises(CacheUnavailable) as caught:
            bench.read(key, who)
        errors.append(str(caught.value))
    with bench.cache.connect() as connection:
        send(connection, {**bench.hello(), "credentials": {"AWS_ACCESS_KEY_ID": SECRET, "broken": 1}})
        errors.append(str(receive(connection)[0]))
    assert bench.cache.process is not None
    own = Path(f"/proc/{bench.cache.process.pid}")
    texts = [
        bench.cache.log.read_text(),
        (own / "cmdline").read_bytes().decode(),
        (own / "environ").read_bytes().decode(),
        str(bench.cache.status()),
        str(bench.cache.control(op="ls")),
        *errors,
        *(file.read_bytes().decode(errors="replace") for file in bench.cache.state.rglob("*") if file.is_file()),
    ]
    assert [text for text in texts if SECRET in text] == []


def test_core_dumps_are_forbidden() -> None:
    script = (
        "import ctypes; from muster.data.cache.privacy import forbid_core_dumps\n"
        "forbid_core_dumps(); print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout == b"0\n"


def test_new_credentials_replace_those_that_were_revoked(running: Bench) -> None:
    first, second = running.put(b"one"), running.put(b"two")
    client = running.cache.client()
    access = running.access("dave")
    running.server.rights["dave"] = ("data",)
    with client.open_object("s3://data", access, first, etag_of(b"one"), 3) as file:
        assert file.read() == b"one"
    del running.server.rights["dave"]
    running.server.rights["erin"] = ("data",)
    (Path(access.credentials_dir) / "AWS_ACCESS_KEY_ID").write_text("erin")
    with client.open_object("s3://data", access, second, etag_of(b"two"), 3) as file:
        assert file.read() == b"two"
    client.close()


def test_bucket_that_is_away_does_not_take_rights_away(bench: Bench) -> None:
    """Training continues from the cache while the bucket is away, for readers that could read it before."""
    key = bench.put(b"cached")
    assert bench.read(key) == b"cached"
    bench.server.before = lambda method, path, who: 503
    assert bench.read(key) == b"cached"
    assert bench.cache.process is not None
    assert bench.cache.process.poll() is None
    bench.cache.signal(signal.SIGCONT)
