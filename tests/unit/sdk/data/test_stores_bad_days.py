"""Issue 14, bad days of an object store: every one ends in the right bytes, or in an error that names the fix."""

from __future__ import annotations

import errno
import io
import os
import random
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from muster.sdk.data import (
    Access,
    AlreadyExists,
    Forbidden,
    NotFound,
    ObjectChanged,
    Store,
    StoreError,
    Unavailable,
    WrongStore,
    reading,
    retry,
)
from muster.sdk.data.deadline import Deadline
from tests.support.buckets import secret_folder
from tests.support.faultyproxy import Fault, FaultyProxy
from tests.support.waiting import eventually
from tests.unit.sdk.data.test_stores_endpoints import Clock

OpenStore = Callable[..., Store]
DEADLINE_S = 20.0
UPLOAD = re.compile("uploadId=([^&]+)")
UNSIGNED = '{"disable_oauth": true, "client_email": "", "private_key": "", "private_key_id": ""}'


@pytest.fixture
def store(opened: OpenStore, s3_url: str, behind_proxy: Access) -> Store:
    return opened(s3_url, behind_proxy, DEADLINE_S)


@pytest.fixture
def direct(opened: OpenStore, s3_url: str, s3: Access) -> Store:
    """The same bucket without the proxy."""
    return opened(s3_url, s3, DEADLINE_S)


def error_body(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>m</Message><RequestId>R1</RequestId></Error>".encode()


@pytest.mark.slow
def test_503_storm_is_survived(store: Store, proxy: FaultyProxy) -> None:
    proxy.add(Fault(times=2, status=503, headers={"Retry-After": "1"}, body=error_body("SlowDown")))
    store.put("x", b"bytes")
    proxy.add(Fault(times=1, status=429, headers={"Retry-After": "1"}))
    assert store.read("x") == b"bytes"
    assert (proxy.count("PUT"), proxy.count("GET")) == (3, 2)


def test_storm_beyond_the_deadline_is_unavailable(
    opened: OpenStore, s3_url: str, behind_proxy: Access, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy.add(Fault(times=None, status=500))
    monkeypatch.setattr("random.uniform", lambda low, high: high)  # the last request has 7 s of real time
    Clock(monkeypatch)
    store = opened(s3_url, behind_proxy, 60.0)
    with pytest.raises(Unavailable, match=rf"x: no success within .* attempts \(last: 500\).*{proxy.address}") as e:
        store.read("x")
    assert e.value.attempts > 1


def test_pauses_grow_with_jitter_and_are_longer_when_the_store_asks_for_fewer_requests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    for throttled, first, longest in [(False, 0.1, 10.0), (True, 1.0, 30.0)]:
        slept.clear()
        backoff = retry.Backoff(Deadline(1e6))
        for _ in range(12):
            assert backoff.pause(throttled)
        limits = [min(longest, first * 2**n) for n in range(12)]
        assert all(limit / 2 <= pause <= limit for pause, limit in zip(slept, limits, strict=True))
        assert len({pause / limit for pause, limit in zip(slept, limits, strict=True)}) == 12
    assert not retry.Backoff(Deadline(0.01)).pause(throttled=True)


@pytest.mark.parametrize("cut", [0, 1, 300_000])
def test_broken_read_continues_at_the_byte_where_it_stopped(store: Store, proxy: FaultyProxy, cut: int) -> None:
    content = random.Random(cut).randbytes(400_000)
    etag = store.put("shard", content).etag
    proxy.clear()
    proxy.add(Fault(method="GET", times=2, cut_after=cut))
    assert store.read("shard", 7) == content[7:]
    gets = [each for each in proxy.requests if each.method == "GET"]
    assert len(gets) == 3 - (cut > 200_000)
    assert all(each.headers["if-match"].strip('"') == etag for each in gets[1:])
    starts = [int(each.headers["range"].partition("=")[2].partition("-")[0]) for each in gets]
    assert starts[0] == 7
    assert starts == sorted(starts)
    assert all(start <= 7 + 2 * cut for start in starts)
    assert (starts[-1] > 7) == (cut > 100_000)  # only whole chunks count


@pytest.mark.parametrize("ignored", [(), ("if-match",), ("if-match", "etag")], ids=["S3", "no If-Match", "no ETag"])
def test_object_that_changes_while_it_is_read_is_an_error(
    store: Store, direct: Store, proxy: FaultyProxy, ignored: tuple[str, ...]
) -> None:
    old, new = (random.Random(seed).randbytes(3 << 20) for seed in (1, 2))
    new = new + b"longer" if "etag" in ignored else new  # without ETags the size shows the change
    store.put("shard", old)

    class ChangingFile(io.BytesIO):
        def write(self, data: object) -> int:
            direct.put("shard", new)
            return super().write(data)  # type: ignore[arg-type]

    hidden = tuple(name for name in ignored if name == "etag")
    proxy.add(
        Fault(method="GET", times=1, cut_after=2_500_000, drop_request_headers=ignored, drop_response_headers=hidden)
    )
    proxy.add(Fault(method="GET", times=None, drop_request_headers=ignored, drop_response_headers=hidden))
    file = ChangingFile()
    with pytest.raises(ObjectChanged):
        store.read_into("shard", file)
    assert old.startswith(file.getvalue())
    assert len(file.getvalue()) >= 1 << 20


def test_large_objects_are_read_in_pieces(store: Store, proxy: FaultyProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", 100_000)
    content = random.Random(5).randbytes(1_000_001)
    store.put("shard", content)
    proxy.clear()
    assert store.read("shard") == content
    assert [each.headers["range"] for each in proxy.requests] == [
        f"bytes={start}-{min(start + 100_000, len(content) if start else start + 100_000) - 1}"
        for start in range(0, len(content), 100_000)
    ]
    assert store.read("shard", 99_999, 100_002) == content[99_999:200_001]


@pytest.mark.slow
def test_connection_that_drips_is_replaced(
    opened: OpenStore, s3_url: str, behind_proxy: Access, proxy: FaultyProxy
) -> None:
    store = opened(s3_url, behind_proxy, 8.0)  # a connection that drips has 4 s, and the next one 2 s
    store.put("shard", bytes(100_000))
    proxy.add(Fault(method="GET", drip_bytes_per_s=2000))
    assert store.read("shard") == bytes(100_000)
    assert proxy.count("GET") == 2
    proxy.add(Fault(method="GET", times=None, drip_bytes_per_s=2000))
    hurried = opened(s3_url, behind_proxy, 1.2)
    with pytest.raises(Unavailable, match="the answer took too long"):
        hurried.read("shard")


def test_deadline_of_one_head_is_kept(store: Store, proxy: FaultyProxy) -> None:
    store.put("x", b"")
    proxy.add(Fault(method="HEAD", times=None, delay_s=3.0))
    with pytest.raises(Unavailable):
        store.head("x", deadline_s=0.6)


def test_create_only_write_whose_answer_was_lost_succeeds(store: Store, proxy: FaultyProxy) -> None:
    proxy.add(Fault(method="PUT", lose_answer=True))
    info = store.put("manifest", b"mine", create_only=True)
    assert info == store.head("manifest")._replace(modified=info.modified)
    assert proxy.count("PUT") == 2
    with pytest.raises(AlreadyExists):
        store.put("manifest", b"mine", create_only=True)


def test_create_only_write_after_a_lost_one_does_not_hide_another_writer(
    store: Store, direct: Store, proxy: FaultyProxy
) -> None:
    direct.put("manifest", b"hers")
    proxy.add(Fault(method="PUT", refuse=True))
    with pytest.raises(AlreadyExists):
        store.put("manifest", b"mine", create_only=True)
    assert store.read("manifest") == b"hers"


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "OperationAborted"])
def test_conflict_of_two_conditional_writes_is_repeated(store: Store, proxy: FaultyProxy, code: str) -> None:
    proxy.add(Fault(method="PUT", status=409, body=error_body(code)))
    store.put("manifest", b"mine", create_only=True)
    assert proxy.count("PUT") == 2


@pytest.mark.slow
def test_part_that_fails_is_repeated_alone(store: Store, proxy: FaultyProxy, tmp_path: Path) -> None:
    content = random.Random(3).randbytes(17 << 20)
    (tmp_path / "weights").write_bytes(content)
    proxy.add(Fault(method="PUT", path="partNumber=2", times=2, status=500))
    store.put("weights", str(tmp_path / "weights"))
    assert (proxy.count("POST", "uploads"), proxy.count("PUT", "partNumber=1&")) == (1, 1)
    assert store.read("weights") == content


def uploads(proxy: FaultyProxy, method: str) -> set[str]:
    """The uploads that requests with this method named."""
    return {found[1] for each in proxy.requests if each.method == method if (found := UPLOAD.search(each.path))}


@pytest.mark.slow
def test_upload_beyond_the_deadline_is_aborted(
    opened: OpenStore,
    s3_url: str,
    behind_proxy: Access,
    proxy: FaultyProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("muster.sdk.data.deadline.SLOWEST_BYTES_PER_S", 1 << 30)
    store = opened(s3_url, behind_proxy, 6.0)  # the request that begins an upload has 4 s
    (tmp_path / "weights").write_bytes(bytes(17 << 20))
    proxy.add(Fault(method="PUT", times=None, status=503))
    with pytest.raises(Unavailable):
        store.put("weights", str(tmp_path / "weights"))
    assert uploads(proxy, "PUT") <= uploads(proxy, "DELETE") != set()
    with pytest.raises(NotFound):
        store.head("weights")


@pytest.fixture
def many_parts(monkeypatch: pytest.MonkeyPatch, proxy: FaultyProxy, tmp_path: Path) -> Path:
    """A file of 32 parts, and a store that takes a while for each four of them."""
    monkeypatch.setattr("muster.sdk.data.obstore_store.PART_BYTES", 1 << 20)
    proxy.add(Fault(method="PUT", times=None, delay_s=0.3))
    path = tmp_path / "weights"
    path.write_bytes(bytes(32 << 20))
    return path


def test_upload_whose_deadline_passes_between_two_parts_is_aborted(
    store: Store, proxy: FaultyProxy, many_parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was an answer that is not understood."""
    monkeypatch.setattr(Deadline, "remaining_s", lambda _: 0.0 if proxy.count("PUT") else DEADLINE_S)
    with pytest.raises(Unavailable, match=r"no success within .*last: the time was over before all was sent") as e:
        store.put("weights", str(many_parts))
    assert e.value.attempts == 1
    assert uploads(proxy, "PUT") == uploads(proxy, "DELETE") != set()


def test_upload_of_a_file_that_becomes_shorter_is_aborted_and_says_so(
    store: Store, proxy: FaultyProxy, many_parts: Path
) -> None:
    def cut() -> None:
        eventually("a part arrived", lambda: proxy.count("PUT"))
        os.truncate(many_parts, 1 << 20)

    with ThreadPoolExecutor(1) as threads:
        cutting = threads.submit(cut)
        with pytest.raises(StoreError, match="/weights became shorter during the upload") as e:
            store.put("weights", str(many_parts))
        cutting.result(DEADLINE_S)
    assert (e.value.key, e.value.reason) == ("weights", "LocalFile")
    assert uploads(proxy, "PUT") == uploads(proxy, "DELETE") != set()
    with pytest.raises(NotFound):
        store.head("weights")


def test_upload_of_a_file_that_cannot_be_read_names_the_file(
    store: Store, many_parts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BrokenDisk(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("muster.sdk.data.obstore_store.open", BrokenDisk, raising=False)
    with pytest.raises(StoreError, match=r"the file .*/weights cannot be read: Input/output error") as e:
        store.put("weights", str(many_parts))
    assert e.value.reason == "LocalFile"


def test_answer_that_is_not_understood_is_shown_without_what_may_be_secret(store: Store, proxy: FaultyProxy) -> None:
    secrets = (
        b"Canary77" * 5,
        b"https://u:canary@h",
        b"https://bucket.example/x?X-Amz-Signature=canary",
        b"SecretAccessKey=canary",
        b"<StringToSign>canary</StringToSign>",
        b"'x-amz-security-token': 'canary'",
        b"Cookie: a canary",
    )
    body = b"<html>I am a teapot\x1b[31m, " + b", ".join(secrets)
    proxy.add(Fault(times=None, status=418, body=body))
    with pytest.raises(StoreError) as e:
        store.read("x")
    message = str(e.value)
    assert re.search(r"run/x: the store refused the request \(418: \w+: .*I am a teapot", message), message
    assert "canary" not in message.lower()
    assert proxy.address not in message
    assert message.isprintable()


def test_create_only_write_has_a_largest_size(store: Store, tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate((512 << 20) + 1)
    with pytest.raises(ValueError, match="a create-only object may have 512 MiB"):
        store.put("x", str(tmp_path / "sparse"), create_only=True)


@pytest.mark.parametrize("call", ["head", "read", "put", "list", "delete"])
@pytest.mark.parametrize(
    ("status", "code", "error", "reason", "words"),
    [
        (403, "AccessDenied", Forbidden, "Forbidden", "Permit the credentials of .*secret.* to [rwld]"),
        (403, "RequestTimeTooSkewed", WrongStore, "ClockSkew", "Correct the clock"),
        (403, "SignatureDoesNotMatch", WrongStore, "WrongCredentials", "Renew the Secret, or correct it"),
        (400, "AuthorizationHeaderMalformed", WrongStore, "WrongRegion", "Set the bucket's own region"),
        (301, "PermanentRedirect", WrongStore, "WrongRegion", "the bucket is not in us-east-1"),
        (404, "NoSuchBucket", WrongStore, "WrongBucket", "Check the URL and the endpoint"),
    ],
)
def test_refusals_are_typed_and_name_the_fix(
    store: Store, proxy: FaultyProxy, call: str, status: int, code: str, error: type[Exception], reason: str, words: str
) -> None:
    proxy.add(Fault(times=None, status=status, body=error_body(code)))
    calls: dict[str, Callable[[], object]] = {
        "head": lambda: store.head("x"),
        "read": lambda: store.read("x"),
        "put": lambda: store.put("x", b""),
        "list": lambda: list(store.list()),
        "delete": lambda: store.delete("x"),
    }
    with pytest.raises(error, match=words) as found:
        calls[call]()
    assert found.value.reason == reason  # type: ignore[attr-defined]
    assert proxy.count() <= 3


def test_403_on_one_object_leaves_the_others_readable(store: Store, proxy: FaultyProxy) -> None:
    store.put("open", b"1")
    store.put("closed", b"2")
    proxy.add(Fault(path="/closed", times=None, status=403, body=error_body("AccessDenied")))
    with pytest.raises(Forbidden, match=r"run/closed: access is denied \(403 AccessDenied \(request R1\)\)"):
        store.read("closed")
    assert store.read("open") == b"1"


def test_403_names_the_operation_and_the_secret(
    opened: OpenStore, s3_url: str, behind_proxy: Access, proxy: FaultyProxy
) -> None:
    store = opened(s3_url, behind_proxy._replace(secret="keys"), DEADLINE_S)
    proxy.add(Fault(times=None, status=403, body=error_body("AccessDenied")))
    calls: dict[str, Callable[[], object]] = {
        "read this object": lambda: store.read("x"),
        "list objects": lambda: list(store.list()),
        "write this object": lambda: store.put("x", b""),
        "delete this object": lambda: store.delete("x"),
    }
    for operation, call in calls.items():
        with pytest.raises(Forbidden, match=f"Permit the credentials of Secret keys to {operation}$"):
            call()


def test_bucket_that_does_not_exist_is_named_by_every_call(opened: OpenStore, s3: Access) -> None:
    calls: list[Callable[[Store], object]] = [
        lambda store: store.head("x"),
        lambda store: store.read("x"),
        lambda store: store.put("x", b""),
        lambda store: list(store.list()),
    ]
    for call in calls:
        with pytest.raises(WrongStore, match=r"the bucket does not exist at http://127") as error:
            call(opened("s3://none-such/x", s3, DEADLINE_S))
        assert error.value.reason == "WrongBucket"


def test_store_that_ignores_ranges_is_refused(store: Store, proxy: FaultyProxy) -> None:
    store.put("x", b"0123456789")
    proxy.add(Fault(method="GET", times=None, drop_request_headers=("range",)))
    with pytest.raises(WrongStore, match="ignores ranges"):
        store.read("x", 2, 3)


def test_many_threads_share_a_store(store: Store) -> None:
    bodies = {f"k{n}": random.Random(n).randbytes(10_000) for n in range(16)}
    found: dict[str, bytes] = {}

    def work(key: str) -> None:
        store.put(key, bodies[key])
        found[key] = store.read(key)

    threads = [threading.Thread(target=work, args=(key,)) for key in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == bodies


FORKING = """
import os, signal, sys
from muster.sdk.data import Access, StoreError, open_store
store = open_store(sys.argv[1], Access(sys.argv[2], "us-east-1", sys.argv[3]), 10)
store.put("x", b"1")
child = os.fork()
if not child:
    signal.alarm(20)
    try:
        store.read("x")
    except StoreError as error:
        del store
        os._exit(7 if error.reason == "Forked" and "multiprocessing_context='spawn'" in str(error) else 8)
    os._exit(9)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), store.read("x"))
"""


def test_forked_process_gets_an_error_and_its_parent_reads_on(s3_url: str, s3: Access) -> None:
    """obstore hangs in a forked process, and hangs in the parent too if the child frees the parent's clients."""
    command = [sys.executable, "-c", FORKING, s3_url, s3.endpoint, s3.credentials_dir]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "7 b'1'"


@pytest.mark.parametrize(
    ("url", "values", "header", "status", "code"),
    [
        (
            "gs://bucket/run",
            {"GOOGLE_SERVICE_ACCOUNT_KEY": UNSIGNED},
            ("x-goog-if-generation-match", "0"),
            412,
            "PreconditionFailed",
        ),
        (
            "az://container/run",
            {"AZURE_STORAGE_ACCOUNT_NAME": "account", "AZURE_STORAGE_ACCOUNT_KEY": "a2V5"},
            ("if-none-match", "*"),
            409,
            "BlobAlreadyExists",
        ),
    ],
    ids=["gs", "az"],
)
def test_google_and_azure_are_asked_to_create_only(
    opened: OpenStore,
    proxy: FaultyProxy,
    tmp_path: Path,
    url: str,
    values: dict[str, str],
    header: tuple[str, str],
    status: int,
    code: str,
) -> None:
    proxy.add(Fault(method="PUT", status=status, body=error_body(code)))
    store = opened(url, Access(proxy.address, "", secret_folder(tmp_path / "secret", **values)), 10)
    with pytest.raises(AlreadyExists):
        store.put("manifest", b"mine", create_only=True)
    assert header in proxy.requests[0].headers.items()
