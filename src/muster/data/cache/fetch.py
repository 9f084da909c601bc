"""Gets blocks for readers. There is one download per block, however many readers wait for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from muster.data.cache.blocks import Block
from muster.data.cache.disk import BLOCKS, Disk, DiskBypassed
from muster.data.cache.downloads import Busy, Downloaded, Downloads, Request
from muster.data.cache.files import Footer, footer_bytes
from muster.data.cache.memory import MemoryBudget, MemoryFile, MemoryFull
from muster.data.cache.sinks import WriteFailed
from muster.sdk.data.errors import Unavailable

_ERROR_S: Final = 1.0
"""A store that did not answer is not asked again for the same block within this time."""
_MAX_ERRORS: Final = 1024


class Got(NamedTuple):
    """A block for one reader, who closes the descriptor. `memory` is set if the disk has no copy."""

    descriptor: int
    footer: Footer
    source: str
    memory: MemoryFile | None = None


class _Fetched(NamedTuple):
    footer: Footer
    source: str
    memory: MemoryFile | None


class _Flight:
    """A download and the number of readers that wait for it."""

    def __init__(self) -> None:
        self.waiters = 0
        self.abandoned = threading.Event()
        self.task: asyncio.Task[_Fetched]


class Fetcher:
    """Gets blocks from the disk, or downloads them.

    Args:
        memory: for blocks while the disk is not used.
        clock: monotonic seconds.
    """

    def __init__(
        self, disk: Disk, downloads: Downloads, memory: MemoryBudget, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._disk = disk
        self._downloads = downloads
        self._memory = memory
        self._clock = clock
        self._flights: dict[str, _Flight] = {}
        self._errors: dict[str, tuple[float, str]] = {}
        self.hits = self.misses = 0

    @property
    def running(self) -> int:
        """Number of downloads that run now."""
        return len(self._flights)

    def in_flight(self, block: Block) -> bool:
        """Return whether the block is being downloaded."""
        return block.name in self._flights

    async def from_disk(self, block: Block) -> Got | None:
        """Open the block if it is on the disk and correct. Raises DiskBypassed."""
        opened = await self._disk.open(BLOCKS, block.name)
        return None if opened is None else Got(opened.descriptor, opened.footer, "disk")

    async def download(self, request: Request) -> Got:
        """Download a block, or wait for its download. Raises StoreError, NoPeer, Busy, DiskBypassed."""
        block = request.block
        flight = self._flights.get(block.name)
        joined = flight is not None
        if flight is None:
            self._check_errors(request)
            flight = self._flights[block.name] = _Flight()
            flight.task = asyncio.create_task(self._fetch(request, flight.abandoned))
            flight.task.add_done_callback(lambda task: self._landed(request, task))
        flight.waiters += 1
        try:
            fetched = await asyncio.shield(flight.task)
            return await self._share(block, fetched, joined)
        finally:
            flight.waiters -= 1
            if not flight.waiters:
                self._leave(block, flight)

    async def _share(self, block: Block, fetched: _Fetched, joined: bool) -> Got:
        source = "disk" if joined else fetched.source
        if fetched.memory is not None:
            return Got(fetched.memory.share(), fetched.footer, source, fetched.memory)
        opened = await self._disk.open(BLOCKS, block.name)
        if opened is None:
            raise Busy("the block was evicted at once; the cache is too small")
        return Got(opened.descriptor, opened.footer, source)

    def _leave(self, block: Block, flight: _Flight) -> None:
        """End a download for which no reader waits any more."""
        flight.abandoned.set()
        flight.task.cancel()
        if self._flights.get(block.name) is flight:
            del self._flights[block.name]
        flight.task.add_done_callback(_release_memory)

    def _landed(self, request: Request, task: asyncio.Task[_Fetched]) -> None:
        if not task.cancelled() and isinstance(error := task.exception(), Unavailable):
            if len(self._errors) >= _MAX_ERRORS:
                self._errors.clear()
            self._errors[request.block.name] = (self._clock() + _ERROR_S, str(error))

    def _check_errors(self, request: Request) -> None:
        block = request.block
        known = self._errors.get(block.name)
        if known is not None:
            if self._clock() < known[0]:
                raise Unavailable(known[1], request.store.url, block.key)
            del self._errors[block.name]

    async def _fetch(self, request: Request, abandoned: threading.Event) -> _Fetched:
        room = request.block.length + _footer_room(request.block)
        try:
            await self._disk.reserve(BLOCKS, room)
            try:
                return await self._to_disk(request, abandoned)
            finally:
                self._disk.release(room)
        except DiskBypassed:
            return await self._to_memory(request, abandoned)

    async def _to_disk(self, request: Request, abandoned: threading.Event) -> _Fetched:
        partial = await self._disk.begin(request.block.name)
        try:
            done = await self._downloads.run(request, partial.descriptor, abandoned)
            self._disk.health.record(done.length, done.write_s)
            footer = _footer(request, done)
            await asyncio.shield(self._disk.add(BLOCKS, partial, footer))
        except WriteFailed as failure:
            self._disk.discard(partial)
            self._disk.failed(failure.error)
            raise DiskBypassed(self._disk.health.reason) from None
        except BaseException:
            self._disk.discard(partial)
            raise
        return _Fetched(footer, done.source, None)

    async def _to_memory(self, request: Request, abandoned: threading.Event) -> _Fetched:
        try:
            file = self._memory.create(request.block.length)
        except MemoryFull as error:
            raise Busy(f"the disk is not used ({self._disk.health.reason or 'full'}), and {error}") from None
        try:
            done = await self._downloads.run(request, file.descriptor, abandoned)
            file.seal()
        except BaseException:
            file.release()
            raise
        return _Fetched(_footer(request, done), done.source, file)


def _release_memory(task: asyncio.Task[_Fetched]) -> None:
    if not task.cancelled() and task.exception() is None and (memory := task.result().memory) is not None:
        memory.release()


def _footer(request: Request, done: Downloaded) -> Footer:
    return Footer(request.block.name, done.length, done.sha256, request.job, _about(request.block))


def _footer_room(block: Block) -> int:
    """Upper bound of the footer's size, before the checksum is known."""
    return footer_bytes(Footer(block.name, block.length, "0" * 64, "0" * 256, _about(block)))


def _about(block: Block) -> dict[str, str | int]:
    return {
        "store": block.store,
        "key": block.key,
        "version": block.version,
        "size": block.size_bytes,
        "block": block.number,
    }
