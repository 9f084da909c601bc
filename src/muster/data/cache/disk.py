"""The cache's disk: which files there are, their order of use, and room for new ones."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import msgspec

from muster.data.cache.files import AREAS, Corrupt, Folder, FolderInUse, Footer, Opened, Partial, Stamp, footer_bytes
from muster.data.cache.health import DiskHealth, allowed_s
from muster.data.cache.leases import Leases

log = logging.getLogger(__name__)
T = TypeVar("T")

BLOCKS, SHARDS = AREAS
MAX_FILES: Final = 500_000
"""The index of so many files takes about 300 MB."""
_FLOOR_INODES: Final = 0.1
"""Share of inodes that stay free. The kubelet evicts pods below 5% (`nodefs.inodesFree`)."""
_THREADS: Final = 4
_HANG_FACTOR: Final = 4
"""An operation that takes so many times the slow limit is given up."""
_TRIAL_BYTES: Final = 1 << 20
_FOOTERS: Final = 1000
"""Footers that are read at once, for a list of the cache."""
_FOOTERS_S: Final = 60.0
_PROBE_S: Final = 60.0
"""A disk in use is measured this often. A slow one is then bypassed after three minutes."""
_MEASURE_S: Final = 1.0
"""The free space is measured again after this time."""


class DiskBypassed(Exception):
    """The disk is not used now: it is slow, full, or fails."""


class NoRoom(DiskBypassed):
    """The files in use leave no room below the size limit or above the floor."""


class Limits(msgspec.Struct, frozen=True):
    """Limits of the cache on its disk.

    Attributes:
        size_bytes: all files together.
        floor_bytes: what stays free in the file system.
        floor_fraction: the same, as a share of the file system. The larger floor counts. It lies above the
            kubelet's default eviction thresholds: `nodefs.available<10%`, `imagefs.available<15%`
            (kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction).
        protected_fraction: share of `size_bytes` that checkpoint shards may take.
    """

    size_bytes: int
    floor_bytes: int = 0
    floor_fraction: float = 0.2
    protected_fraction: float = 0.5


class Entry:
    """A file of the index. `footer` and `stamp` are None until it is verified."""

    __slots__ = ("bytes", "footer", "stamp")

    def __init__(self, size: int, footer: Footer | None = None, stamp: Stamp | None = None) -> None:
        self.bytes = size
        self.footer = footer
        self.stamp = stamp


class Disk:
    """The index of the folder. All methods run in the event loop; blocking calls run in a few threads."""

    def __init__(self, folder: Folder, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder
        self.limits = limits
        self.health = DiskHealth(clock)
        self.leases = Leases()
        self.corrupt = 0
        self.evicted_bytes = 0
        self.entries: dict[str, OrderedDict[str, Entry]] = {area: OrderedDict() for area in AREAS}
        self.used: dict[str, int] = dict.fromkeys(AREAS, 0)
        self.free_bytes = self.total_bytes = 0
        self._clock = clock
        self._reserved = 0
        self._measured_s = -_MEASURE_S
        self._probe_s = clock() + _PROBE_S
        self._used_since_probe = False
        self._inodes_low = False
        self._threads = ThreadPoolExecutor(_THREADS, "disk")
        self._trial: asyncio.Task[None] | None = None
        self._added_in_trial: set[str] | None = None

    async def start(self) -> None:
        """Claim the folder and list its files. Raises FolderInUse, OSError."""
        self.folder.claim()
        self._index(await self.call(self._files, 0, 600.0), set())
        await self.sweep()

    def close(self) -> None:
        """Release the folder."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.folder.release()

    @property
    def used_bytes(self) -> int:
        """Bytes of all files and reservations."""
        return sum(self.used.values()) + self._reserved

    @property
    def floor_bytes(self) -> int:
        """Bytes that stay free in the file system."""
        return max(self.limits.floor_bytes, int(self.total_bytes * self.limits.floor_fraction))

    def has(self, area: str, name: str) -> bool:
        """Return whether there is such a file, verified or not."""
        return name in self.entries[area]

    async def open(self, area: str, name: str) -> Opened | None:
        """Open a verified file, or return None if there is none. Raises DiskBypassed.

        A corrupt file is removed. Marks the file as used last.
        """
        entry = self.entries[area].get(name)
        if entry is None:
            return None
        if not self.health.usable:
            raise DiskBypassed(self.health.reason)
        known = (entry.footer, entry.stamp) if entry.footer is not None and entry.stamp is not None else None
        try:
            opened = await self.call(lambda: self._open(area, name, known), entry.bytes, dispose=_close)
        except Corrupt as error:
            self.corrupt += 1
            log.warning("removed a corrupt file: %s", error)
            await self.remove(area, name)
            return None
        if opened is None:
            self._forget(area, name)
            return None
        entry.footer, entry.stamp = opened.footer, opened.stamp
        if name in self.entries[area]:
            self.entries[area].move_to_end(name)
        return opened

    async def reserve(self, area: str, count: int) -> None:
        """Make room for a file of `count` bytes, with its footer. The caller ends it with `release`.

        Raises DiskBypassed.
        """
        if not self.health.usable:
            raise DiskBypassed(self.health.reason)
        if area == SHARDS and self.used[SHARDS] + count > self.limits.size_bytes * self.limits.protected_fraction:
            raise NoRoom(f"checkpoint shards already take {self.used[SHARDS]} bytes")
        self._reserved += count
        try:
            await self._measure()
            await self._make_room()
        except BaseException:
            self._reserved -= count
            raise

    def release(self, count: int) -> None:
        """End a reservation, whether or not the file was added."""
        self._reserved -= count

    async def begin(self, name: str) -> Partial:
        """Create a temporary file. Raises DiskBypassed."""
        return await self.call(lambda: self.folder.begin(name), 0, dispose=self.discard)

    async def add(self, area: str, partial: Partial, footer: Footer) -> None:
        """Give a complete temporary file its name. Raises DiskBypassed; the caller then discards the file."""
        stamp = await self.call(lambda: self.folder.commit(partial, area, footer), footer.length)
        self._forget(area, footer.name)
        size = footer.length + footer_bytes(footer)
        self.entries[area][footer.name] = Entry(size, footer, stamp)
        self.used[area] += size
        self.free_bytes -= size
        if self._added_in_trial is not None:
            self._added_in_trial.add(footer.name)

    async def footers(self, area: str) -> list[tuple[str, Footer]]:
        """Names and footers of all files, verified or not. Raises DiskBypassed."""
        unread = [name for name, entry in self.entries[area].items() if entry.footer is None]
        for start in range(0, len(unread), _FOOTERS):
            names = unread[start : start + _FOOTERS]
            for name, footer in (await self.call(lambda: self.folder.footers(area, names), 0, _FOOTERS_S)).items():  # noqa: B023
                if name in self.entries[area]:
                    self.entries[area][name].footer = footer
        return [(name, entry.footer) for name, entry in self.entries[area].items() if entry.footer is not None]

    def discard(self, partial: Partial) -> None:
        """Remove a temporary file in the background. The next start removes what the disk does not."""
        self.defer(partial.discard)

    def defer(self, work: Callable[[], object]) -> None:
        """Run a call in the background, without waiting for its result."""
        with contextlib.suppress(RuntimeError):  # the daemon ends
            self._threads.submit(work)

    async def remove(self, area: str, name: str) -> int:
        """Remove a file, and return its size in bytes. The disk's errors count, but are not raised."""
        size = self._forget(area, name)
        try:
            await self.call(lambda: self.folder.remove(area, name), 0)
        except DiskBypassed as error:
            log.warning("could not remove a file of the cache: %s", error)
        return size

    async def sweep(self) -> None:
        """Keep the floor free and stay below the limits; try a bypassed disk when it is time."""
        if self.health.usable:
            try:
                self._measured_s = -_MEASURE_S
                await self._measure()
                await self._make_room()
            except DiskBypassed:
                pass  # the files in use are not evicted
            self._probe()
        elif self.health.trial_due() and (self._trial is None or self._trial.done()):
            self._trial = asyncio.create_task(self._try())

    def _probe(self) -> None:
        """Measure a disk in use now and then: most writes only reach the kernel's memory, and so seem fast."""
        if self._used_since_probe and self._clock() >= self._probe_s and (self._trial is None or self._trial.done()):
            self._probe_s = self._clock() + _PROBE_S
            self._used_since_probe = False
            self._trial = asyncio.create_task(self._try())

    async def call(
        self,
        work: Callable[[], T],
        count: int,
        limit_s: float | None = None,
        dispose: Callable[[T], object] | None = None,
    ) -> T:
        """Run a blocking call on `count` bytes in a thread, and judge the disk by it.

        Raises DiskBypassed if the disk fails or hangs, and Corrupt. A result that comes too late goes to `dispose`.
        """
        self._used_since_probe = self._used_since_probe or count > 0
        began_s = self._clock()
        limit_s = limit_s if limit_s is not None else allowed_s(count) * _HANG_FACTOR
        future = asyncio.wrap_future(self._threads.submit(work))
        try:
            done, _ = await asyncio.wait({future}, timeout=limit_s)
        except asyncio.CancelledError:
            future.add_done_callback(lambda late: _dispose(late, dispose))
            raise
        if not done:
            future.add_done_callback(lambda late: _dispose(late, dispose))
            self.health.fail(f"hangs: {count} bytes took more than {limit_s:.0f} s")
            raise DiskBypassed(self.health.reason)
        try:
            result = future.result()
        except OSError as error:
            self.failed(error)
            raise DiskBypassed(self.health.reason) from None
        self.health.record(count, self._clock() - began_s)
        return result

    def failed(self, error: OSError) -> None:
        """Bypass the disk after an error of an operation that ran elsewhere."""
        code = errno.errorcode.get(error.errno or 0, "OSError")
        log.warning("the cache's disk failed, readers use the bucket: %s", code)
        self.health.fail(code)

    async def _try(self) -> None:
        added = self._added_in_trial = set()
        try:
            await self._try_out(added)
        finally:
            self._added_in_trial = None

    async def _try_out(self, added: set[str]) -> None:
        """Try the disk. `added` has the names of files that are added until this ends."""
        began_s, in_use = self._clock(), self.health.usable
        future = asyncio.wrap_future(self._threads.submit(self._restore_and_try_out))
        done, _ = await asyncio.wait({future}, timeout=allowed_s(_TRIAL_BYTES) * _HANG_FACTOR)
        if not done:
            future.add_done_callback(lambda late: _dispose(late, None))
            self.health.fail("hangs: a trial did not end")
            return
        try:
            found = future.result()
        except OSError as error:
            self.failed(error)
            return
        except FolderInUse as error:
            log.warning("%s", error)
            self.health.fail("another daemon uses the folder")
            return
        seconds = self._clock() - began_s
        if found is not None:
            log.warning("the cache's folder %s was removed; it is there again", self.folder.root)
            self._index(found, added)
        if in_use:
            self.health.record(_TRIAL_BYTES, seconds)
        elif self.health.passed(_TRIAL_BYTES, seconds):
            log.info("the cache's disk works again")

    def _open(self, area: str, name: str, known: tuple[Footer, Stamp] | None) -> Opened | None:
        try:
            return self.folder.open(area, name, known)
        except FileNotFoundError:
            return None

    def _restore_and_try_out(self) -> dict[str, list[tuple[str, int]]] | None:
        """Try the disk. Return the files if the folder, or a part of it, was removed."""
        found = self._files() if self.folder.restore() else None
        self.folder.try_out(_TRIAL_BYTES)
        return found

    def _files(self) -> dict[str, list[tuple[str, int]]]:
        """Return name and size of the files of each area, the one that was written last at the end."""
        found = {}
        for area in AREAS:
            files = sorted(self.folder.names(area), key=lambda file: file[2])
            found[area] = [(name, size) for name, size, _ in files]
        return found

    def _index(self, found: dict[str, list[tuple[str, int]]], added: set[str]) -> None:
        """Put the files that were found in place of the index, except those added since: the list may lack these."""
        for area, files in found.items():
            late = {name: entry for name, entry in self.entries[area].items() if name in added}
            listed = ((name, Entry(size)) for name, size in files if name not in late)
            self.entries[area] = OrderedDict([*listed, *late.items()])
            self.used[area] = sum(entry.bytes for entry in self.entries[area].values())

    def _forget(self, area: str, name: str) -> int:
        entry = self.entries[area].pop(name, None)
        if entry is None:
            return 0
        self.used[area] -= entry.bytes
        return entry.bytes

    async def _measure(self) -> None:
        if self._clock() - self._measured_s >= _MEASURE_S:
            self._measured_s = self._clock()
            self.free_bytes, self.total_bytes, self._inodes_low = await self.call(self._room, 0)

    def _room(self) -> tuple[int, int, bool]:
        free, inodes = self.folder.free_bytes(), self.folder.free_inodes()
        return *free, inodes[1] > 0 and inodes[0] < inodes[1] * _FLOOR_INODES

    async def _make_room(self) -> None:
        """Remove files, the one that was used longest ago first. Raises NoRoom if that is not enough."""
        while True:
            over = self.used_bytes - self.limits.size_bytes
            below = self.floor_bytes + self._reserved - self.free_bytes
            many = len(self.entries[BLOCKS]) + len(self.entries[SHARDS]) >= MAX_FILES or self._inodes_low
            if over <= 0 and below <= 0 and not many:
                return
            # Shards leave only for the floor: otherwise the kubelet evicts pods.
            areas = AREAS if below > 0 else (BLOCKS,)
            victim = next(
                ((area, name) for area in areas for name in self.entries[area] if name not in self.leases), None
            )
            if victim is None:
                if many and over <= 0 and below <= 0:
                    raise NoRoom("there are too many files, and all are in use")
                raise NoRoom(f"{max(over, below)} bytes are missing, and all files are in use")
            size = await self.remove(*victim)
            self.evicted_bytes += size
            self.free_bytes += size
            if self._inodes_low:
                self._measured_s = -_MEASURE_S
                await self._measure()


def _close(late: Opened | None) -> None:
    if late is not None:
        os.close(late.descriptor)


def _dispose(late: asyncio.Future[T], dispose: Callable[[T], object] | None) -> None:
    if not late.cancelled() and late.exception() is None and dispose is not None:
        dispose(late.result())
