"""Objects as files: complete or absent, created once, and never of two versions."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path

import pytest

from muster.sdk.data import (
    AlreadyExists,
    Forbidden,
    NoCreateOnly,
    NotFound,
    ObjectChanged,
    Store,
    StoreError,
    open_store,
)
from tests.support.waiting import eventually


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"file://{tmp_path}/data")


def names(store: Store) -> list[str]:
    return [found.key for found in store.list()]


def test_killed_writer_leaves_no_object(store: Store, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = f"from muster.sdk.data import open_store; open_store({store.url!r}).put('a/b', {str(pipe)!r})"
    writer = subprocess.Popen([sys.executable, "-c", program])
    try:
        with pipe.open("wb", buffering=0) as file:
            file.write(b"the first half")
            eventually("the temporary file is there", lambda: any((tmp_path / "data" / "a").glob(".muster-writing-*")))
            writer.kill()
            writer.wait(20)
    finally:
        writer.kill()
        writer.wait(20)
    assert names(store) == []
    with pytest.raises(NotFound):
        store.read("a/b")
    store.put("a/b", b"new", create_only=True)
    assert names(store) == ["a/b"]


def test_failed_write_leaves_the_old_object_and_no_temporary_file(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("x", b"old")

    def no_space(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", no_space)
        with pytest.raises(StoreError, match=r"x: No space left on device\. Free space in /.*data"):
            store.put("x", b"new")
    assert store.read("x") == b"old"
    assert os.listdir(tmp_path / "data") == ["x"]


def test_one_of_many_creators_wins(store: Store) -> None:
    barrier, winners = threading.Barrier(8), []

    def create(number: int) -> None:
        barrier.wait(20)
        try:
            store.put("manifest", b"%d" % number, create_only=True)
            winners.append(number)
        except AlreadyExists:
            pass

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(winners) == 1
    assert store.read("manifest") == b"%d" % winners[0]


def test_create_only_works_without_hard_links(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store.put("x", b"first", create_only=True)
    with pytest.raises(AlreadyExists):
        store.put("x", b"second", create_only=True)
    monkeypatch.setattr(os.path, "lexists", lambda path: False)  # another process creates it at the last moment
    with pytest.raises(AlreadyExists):
        store.put("x", b"second", create_only=True)
    assert store.read("x") == b"first"
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: object())
    with pytest.raises(NoCreateOnly, match="only by replacing others"):
        store.put("y", b"", create_only=True)
    assert names(store) == ["x"]


def test_file_that_changes_in_place_while_it_is_read_is_an_error(store: Store, tmp_path: Path) -> None:
    store.put("shard", bytes(3 << 20))
    etag = store.head("shard").etag

    class ChangingFile(io.BytesIO):
        def write(self, data: object) -> int:
            with (tmp_path / "data" / "shard").open("r+b") as file:
                file.truncate(2 << 20)
            return super().write(data)  # type: ignore[arg-type]

    file = ChangingFile()
    with pytest.raises(ObjectChanged):
        store.read_into("shard", file)
    assert len(file.getvalue()) == 1 << 20
    with pytest.raises(ObjectChanged):
        store.read("shard", etag=etag)


@pytest.mark.slow
def test_object_of_20_gb_is_read_by_ranges_in_bounded_memory(store: Store, tmp_path: Path) -> None:
    size = 20 << 30
    store.put("huge", b"")
    with (tmp_path / "data" / "huge").open("r+b") as file:
        file.truncate(size)
        file.seek(size - 5)
        file.write(b"xyz")
    assert store.head("huge").size_bytes == size
    assert store.read("huge", size - 6, 100) == b"\0xyz\0\0"
    with open(os.devnull, "wb") as sink:
        tracemalloc.start()
        assert store.read_into("huge", sink, 19 << 30, 128 << 20) == 128 << 20
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak_bytes < 8 << 20


def test_deleting_removes_empty_folders_but_not_the_root(store: Store, tmp_path: Path) -> None:
    store.put("a/b/c", b"")
    store.put("a/d", b"")
    store.delete("a/b/c")
    assert os.listdir(tmp_path / "data" / "a") == ["d"]
    store.delete("a/d")
    assert os.listdir(tmp_path / "data") == []


@pytest.mark.slow
def test_writers_and_deleters_of_one_folder_do_not_disturb_each_other(store: Store) -> None:
    failures: list[BaseException] = []

    def work(key: str) -> None:
        try:
            for _ in range(100):
                store.put(key, b"x")
                store.delete(key)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(f"a/b/{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []


def test_links_are_followed_once(store: Store, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "x").write_bytes(b"1")
    store.put("own", b"")
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "data" / "loop").symlink_to(tmp_path / "data")
    (tmp_path / "data" / "dangling").symlink_to(tmp_path / "none")
    assert names(store) == ["linked/x", "own"]


def test_files_where_folders_are_needed_are_named(store: Store) -> None:
    store.put("a", b"")
    with pytest.raises(StoreError, match=r"a/b: a file is where a folder is needed"):
        store.put("a/b", b"")
    with pytest.raises(NotFound):
        store.read("a/b")
    store.put("d/x", b"")
    with pytest.raises(StoreError, match="a folder is there"):
        store.put("d", b"")
    for call in (store.read, store.head):
        with pytest.raises(NotFound):
            call("d")
    with pytest.raises(StoreError, match="reserved"):
        store.put("a-folder/.muster-writing-x", b"")


def test_read_only_folders_are_forbidden(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    store.put("x", b"")
    monkeypatch.setattr(os, "replace", read_only)
    with pytest.raises(Forbidden, match=r"x: access is denied \(Read-only file system\).*mount the folder writable"):
        store.put("x", b"new")
