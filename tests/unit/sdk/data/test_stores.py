"""The contract of stores, for every kind that runs here."""

from __future__ import annotations

import io
import itertools
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from muster.sdk.data import (
    Access,
    AlreadyExists,
    NotFound,
    ObjectChanged,
    ObjectInfo,
    ObstoreMissing,
    Store,
    WrongStore,
    access_from,
    open_store,
)

OpenStore = Callable[..., Store]
_names = itertools.count()
KEYS = ["a", "a-b", "a.c", "a/b", "a/b.txt", "a/b/c", "a/ü x%20+&=#", "b", "zz/y"]


@pytest.fixture(params=["memory", "file", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Access]:
    if request.param == "s3":
        return request.getfixturevalue("s3_url"), request.getfixturevalue("s3")
    return f"memory://test-{next(_names)}/p" if request.param == "memory" else str(tmp_path / "data"), Access()


@pytest.fixture
def store(place: tuple[str, Access], opened: OpenStore) -> Store:
    return opened(*place, 30)


def test_object_is_returned_as_written_until_deleted(store: Store) -> None:
    written = store.put("a/b.bin", b"0123456789")
    found = store.head("a/b.bin")
    assert (written.key, written.size_bytes, written.etag) == ("a/b.bin", 10, found.etag)
    assert found == ObjectInfo("a/b.bin", 10, found.etag, found.version, found.modified)
    assert found.modified > 1_700_000_000
    assert store.read("a/b.bin") == b"0123456789"
    assert store.put("a/b.bin", b"other").etag != found.etag
    assert store.read("a/b.bin") == b"other"
    store.delete("a/b.bin")
    store.delete("a/b.bin")
    for call in (store.head, store.read):
        with pytest.raises(NotFound, match=r"a/b\.bin: the object does not exist") as error:
            call("a/b.bin")
        assert (error.value.url, error.value.key, error.value.reason) == (store.url, "a/b.bin", "NotFound")


def test_create_only_write_does_not_replace_an_object(store: Store) -> None:
    store.put("manifest.json", b"first", create_only=True)
    with pytest.raises(AlreadyExists):
        store.put("manifest.json", b"second", create_only=True)
    with pytest.raises(AlreadyExists):  # even the same bytes are refused
        store.put("manifest.json", b"first", create_only=True)
    assert store.read("manifest.json") == b"first"


def test_ranges_are_those_of_a_file(store: Store) -> None:
    content = bytes(range(256)) * 40
    etag = store.put("shard", content).etag
    store.put("empty", b"")
    assert store.read("empty") == b""
    assert store.read("empty", 0, 10) == b""
    for start, length in [(0, 0), (0, 1), (10, 100), (10_239, 1), (10_239, 9), (10_240, None), (20_000, 5), (7, None)]:
        expected = content[start:] if length is None else content[start : start + length]
        assert store.read("shard", start, length, etag) == expected
        file = io.BytesIO()
        assert store.read_into("shard", file, start, length) == len(expected)
        assert file.getvalue() == expected
    for start, length in [(-1, 1), (0, -1)]:
        with pytest.raises(ValueError, match="must not be negative"):
            store.read("shard", start, length)


def test_another_version_than_the_one_asked_for_is_an_error(store: Store) -> None:
    old = store.put("shard", b"old bytes").etag
    store.put("shard", b"new bytes")
    with pytest.raises(ObjectChanged, match=r"shard: the object is not the one that was read before"):
        store.read("shard", etag=old)
    with pytest.raises(ObjectChanged):
        store.read_into("shard", io.BytesIO(), 2, 3, etag=old)


def test_lists_are_sorted_and_have_prefixes_of_any_length(store: Store) -> None:
    for key in random.Random(1).sample(KEYS, len(KEYS)):
        if not (store.url.startswith("file") and key in ("a", "a/b")):  # a file cannot be a folder too
            store.put(key, key.encode())
    keys = [found.key for found in store.list()]
    assert keys == sorted(keys)
    assert len(keys) >= len(KEYS) - 2
    for prefix in ["a", "a/", "a/b", "a/b.", "a/b/", "a/b/c", "a/ü", "b", "c", "z", "zz/y", "zz/yy", "a/b.txt/"]:
        assert [found.key for found in store.list(prefix)] == [key for key in keys if key.startswith(prefix)]
    for found in store.list():
        assert store.head(found.key) == found
        assert store.read(found.key, etag=found.etag) == found.key.encode()


def test_stores_of_one_bucket_see_only_their_prefix(store: Store, place: tuple[str, Access], opened: OpenStore) -> None:
    store.put("in/x", b"1")
    inner = opened(f"{place[0]}/in/", place[1])
    assert [found.key for found in inner.list()] == ["x"]
    assert inner.read("x") == b"1"
    inner.put("y", b"2")
    assert store.read("in/y") == b"2"


@pytest.mark.slow
def test_local_file_is_uploaded_in_parts(store: Store, tmp_path: Path) -> None:
    content = random.Random(2).randbytes(33 << 20)
    path = tmp_path / "weights"
    path.write_bytes(content)
    info = store.put("weights", str(path))
    assert info.size_bytes == len(content)
    assert store.head("weights").etag == info.etag
    with io.BytesIO() as file:
        assert store.read_into("weights", file, etag=info.etag) == len(content)
        assert file.getvalue() == content
    with pytest.raises(AlreadyExists):
        store.put("weights", str(path), create_only=True)
    with pytest.raises(FileNotFoundError):
        store.put("weights", str(tmp_path / "none"))


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/../b", ".", "a/./b", "a\nb", "x" * 1025])
def test_unsafe_keys_are_refused(store: Store, key: str) -> None:
    for call in (store.head, store.read, store.delete, lambda key: store.put(key, b"")):
        with pytest.raises(WrongStore) as error:
            call(key)
        assert error.value.reason == "WrongKey"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("", "empty"),
        ("ftp://bucket/x", "use s3://"),
        ("s3:///x", "name of the bucket"),
        ("s3://bucket/a/../b", "not a key"),
        ("file://host/path", "three slashes"),
        ("s3://user:canary@bucket/x", "Put credentials into the Secret"),
        ("az://container/x?sv=1&sig=canary", "Put credentials into the Secret"),
    ],
)
def test_wrong_urls_name_the_fix_and_no_credentials(url: str, shown: str) -> None:
    with pytest.raises(WrongStore, match=shown) as error:
        open_store(url)
    assert "canary" not in repr(error.value) + error.value.url
    assert error.value.reason in ("WrongURL", "WrongKey")


@pytest.mark.parametrize("endpoint", ["localhost:9000", "ftp://x", "http://u:canary@host", "https://host/?sig=canary"])
def test_wrong_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(WrongStore, match="the endpoint must") as error:
        open_store("s3://bucket", Access(endpoint))
    assert "canary" not in str(error.value)
    assert error.value.reason == "WrongEndpoint"


def test_access_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert access_from("MUSTER_DATA") == Access("", "", "")
    for name, value in {"ENDPOINT": "http://x", "REGION": "eu", "CREDENTIALS": "/c", "SECRET": "keys"}.items():
        monkeypatch.setenv(f"MUSTER_DATA_{name}", value)
    assert access_from("MUSTER_DATA") == Access("http://x", "eu", "/c", "keys")


def test_without_obstore_the_fix_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    monkeypatch.delenv("MUSTER_CACHE_SOCKET", raising=False)
    with pytest.raises(ObstoreMissing, match=r"pip install\s+'muster\[data\]'.*node cache"):
        open_store("s3://bucket")
    assert open_store(str(tmp_path)).url == f"file://{tmp_path}"


def test_importing_the_sdk_does_not_import_obstore() -> None:
    program = (
        "import sys, muster\n"
        "print([m for m in sys.modules if m.startswith('muster.sdk.data')])\n"
        "import muster.sdk.data\n"
        "print([m for m in sys.modules if m.startswith(('obstore', 'ctypes', 'asyncio'))])"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["[]", "[]"]
