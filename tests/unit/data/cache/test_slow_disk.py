"""A disk whose calls hang: readers get their bytes from memory, and the disk is used again when it recovers."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from muster.data.cache import disk as disks
from muster.data.cache.accounts import Accounts
from muster.data.cache.blocks import Block
from muster.data.cache.disk import BLOCKS, Disk, Limits
from muster.data.cache.downloads import Downloads, Request
from muster.data.cache.fetch import Fetcher, Got
from muster.data.cache.files import Folder, FolderInUse, Partial
from muster.data.cache.memory import MemoryBudget
from muster.data.cache.rates import Rates
from muster.data.cache.shares import Shares
from muster.sdk.data.store import Store
from tests.support.waiting import until


class HangingFolder(Folder):
    """A folder on a disk that hangs while `works` is clear."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.works = threading.Event()
        self.works.set()

    def begin(self, name: str) -> Partial:
        assert self.works.wait(60)
        return super().begin(name)


class SlowlyListed(Folder):
    """A folder that is listed at once, but the list is late."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.listed = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def names(self, area: str) -> Iterator[tuple[str, int, int]]:
        names = list(super().names(area))
        self.listed.set()
        assert self.go_on.wait(60)
        return iter(names)


class Bucket(Store):
    url = "s3://data"

    def read_into(self, key: str, file: BinaryIO, start: int = 0, length: int | None = None, etag: str = "") -> int:
        return file.write(b"bytes")


class Clock:
    """The real clock, and what the test adds."""

    def __init__(self) -> None:
        self.added_s = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.added_s


async def read(fetcher: Fetcher, key: str) -> Got:
    got = await fetcher.download(Request(Block("s3://data", key, "tag", 5, 0), Bucket(), "job"))
    try:
        assert os.pread(got.descriptor, 9, 0)[:5] == b"bytes"
    finally:
        os.close(got.descriptor)
        if got.memory is not None:
            got.memory.release()
    return got


async def until_usable(disk: Disk, clock: Clock) -> None:
    async def usable() -> bool:
        clock.added_s += 10
        await disk.sweep()
        return disk.health.usable

    await until("the disk is used again", usable)


@contextmanager
def hanging(folder: HangingFolder, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The disk hangs, and is given up after a tenth of a second. One that works has its usual time."""
    with monkeypatch.context() as patch:
        patch.setattr(disks, "_HANG_FACTOR", 0.05)
        folder.works.clear()
        yield
        folder.works.set()


async def test_issue_4779_hanging_disk_is_bypassed_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, clock = HangingFolder(tmp_path), Clock()
    disk = Disk(folder, Limits(size_bytes=1 << 20, floor_fraction=0.0), clock)
    await disk.start()
    memory = MemoryBudget(100)
    fetcher = Fetcher(disk, Downloads(Accounts(), Rates()), memory, clock)
    assert (await read(fetcher, "first")).memory is None
    with hanging(folder, monkeypatch):
        assert (await read(fetcher, "second")).memory is not None
        assert disk.health.reason.startswith("hangs")
        assert (await read(fetcher, "third")).memory is not None
        await until("the memory is given back", lambda: memory.used_bytes == 0)
    await until_usable(disk, clock)
    assert (await read(fetcher, "fourth")).memory is None
    assert len(disk.entries[BLOCKS]) == 2
    disk.close()


def indexed(disk: Disk) -> bool:
    """Return whether the index has the blocks that are in the folder, and no others."""
    files = [path for path in (disk.folder.root / "blocks").rglob("*") if path.is_file()]
    sizes = sum(path.stat().st_size for path in files)
    return (len(disk.entries[BLOCKS]), disk.used[BLOCKS]) == (len(files), sizes)


@pytest.mark.parametrize("part", ["", "lock", "partial", "blocks", "shards"])
async def test_removed_folder_is_made_again_and_used(tmp_path: Path, part: str) -> None:
    folder, clock = Folder(tmp_path / "cache"), Clock()
    disk = Disk(folder, Limits(size_bytes=1 << 20, floor_fraction=0.0), clock)
    await disk.start()
    fetcher = Fetcher(disk, Downloads(Accounts(), Rates()), MemoryBudget(100), clock)
    await read(fetcher, "first")
    removed = folder.root / part
    removed.unlink() if part == "lock" else shutil.rmtree(removed)
    clock.added_s += 100
    await read(fetcher, "second")  # from the memory if the disk is bypassed
    await disk.sweep()  # an unused disk is not tried
    await until("it is there again", lambda: removed.exists() or not disk.health.usable)
    await until_usable(disk, clock)
    assert (await read(fetcher, "third")).memory is None
    assert all(path.is_dir() for path in (folder.root / "blocks", folder.root / "shards", folder.root / "partial"))
    # The folder is there again before the disk has the list of its files.
    await until("the index has the files", lambda: indexed(disk))
    with pytest.raises(FolderInUse):
        Folder(folder.root).claim()
    disk.close()


async def test_file_that_is_added_while_a_removed_folder_is_listed_stays_in_the_index(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, clock = SlowlyListed(tmp_path / "cache"), Clock()
    disk = Disk(folder, Limits(size_bytes=1 << 20, floor_fraction=0.0), clock)
    await disk.start()
    fetcher = Fetcher(disk, Downloads(Accounts(), Rates()), MemoryBudget(100), clock)
    await read(fetcher, "first")
    shutil.rmtree(folder.root / "shards")
    folder.listed.clear()
    folder.go_on.clear()
    clock.added_s += 100
    await disk.sweep()
    await until("the files are listed", folder.listed.is_set)
    await read(fetcher, "second")
    folder.go_on.set()
    await until("the list is used", lambda: "it is there again" in caplog.text)
    assert len(disk.entries[BLOCKS]) == 2
    assert indexed(disk)
    disk.close()


async def test_folder_that_another_daemon_made_again_is_not_used(tmp_path: Path) -> None:
    folder, clock = Folder(tmp_path / "cache"), Clock()
    disk = Disk(folder, Limits(size_bytes=1 << 20, floor_fraction=0.0), clock)
    await disk.start()
    shutil.rmtree(folder.root)
    other = Folder(folder.root)
    other.claim()
    await disk.call(lambda: None, 1)
    clock.added_s += 100
    await disk.sweep()
    await until("the disk is not used", lambda: not disk.health.usable)
    assert disk.health.reason == "another daemon uses the folder"
    other.release()
    await until_usable(disk, clock)
    disk.close()


async def test_disk_in_use_is_measured_and_an_idle_one_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, clock = HangingFolder(tmp_path), Clock()
    disk = Disk(folder, Limits(size_bytes=1 << 20, floor_fraction=0.0), clock)
    await disk.start()
    clock.added_s += 1000
    tasks = asyncio.all_tasks()
    await disk.sweep()
    assert asyncio.all_tasks() == tasks  # nothing used it, so nothing is tried
    await disk.call(lambda: None, 1)
    with hanging(folder, monkeypatch):
        await disk.sweep()
        await until("the probe is given up", lambda: not disk.health.usable)
    await until_usable(disk, clock)
    disk.close()


async def test_job_whose_store_hangs_does_not_take_all_places() -> None:
    shares = Shares(3, 2)
    release = asyncio.Event()

    async def hold(job: str) -> None:
        async with shares.take(job):
            await release.wait()

    hanging = [asyncio.create_task(hold("bad")) for _ in range(10)]
    await asyncio.sleep(0)
    async with asyncio.timeout(10), shares.take("good"):
        pass
    for task in hanging[:5]:
        task.cancel()
    await asyncio.gather(*hanging[:5], return_exceptions=True)
    release.set()
    await asyncio.gather(*hanging[5:])
    async with asyncio.timeout(10), shares.take("bad"), shares.take("bad"), shares.take("good"):
        pass
