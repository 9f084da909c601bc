"""Moves a file's bytes over a connection in bounded memory, and notices when the other side is too slow."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

import msgspec

from muster.data.cache.sinks import WriteFailed
from muster.data.peers.frames import CHUNK_BYTES, Code, PeerError

Pause = Callable[[int], float]
"""Charges bytes to a job's rate, and returns how many seconds to pause."""
STALL_S: Final = 10.0
"""A receiver that takes longer for one chunk is cut off."""


class Pace(msgspec.Struct, frozen=True):
    """When a peer counts as slow.

    Attributes:
        connect_s: limit for a connection.
        silence_s: limit for the first answer, and between messages that say that the peer still works on it.
        floor_bytes_per_s: slowest rate of a transfer, in each window.
        window_s: length of a window.
    """

    connect_s: float = 2.0
    silence_s: float = 5.0
    floor_bytes_per_s: float = 1 << 20
    window_s: float = 5.0


async def receive_file(
    reader: asyncio.StreamReader,
    descriptor: int,
    length: int,
    sha256: str,
    *,
    pace: Pace,
    threads: Executor,
    pause: Pause,
) -> None:
    """Write `length` bytes to a file from its current offset, and compare their checksum.

    No write is in progress on return. Raises PeerError if the bytes are wrong or come too slowly, IncompleteReadError,
    and WriteFailed if the file cannot be written.
    """
    file = _File(descriptor, threads)
    window = _Window(pace)
    left = length
    try:
        while left:
            async with asyncio.timeout(pace.window_s + pace.silence_s):
                data = await reader.read(min(CHUNK_BYTES, left))
            if not data:
                raise asyncio.IncompleteReadError(b"", left)
            left -= len(data)
            window.count(len(data))
            await file.write(data)
            pause_s = pause(len(data))
            if pause_s > 0:
                await asyncio.sleep(pause_s)
                window.restart()
    finally:
        file.close()
    if file.sha256() != sha256:
        raise PeerError(Code.WRONG_BYTES, "the bytes differ from the peer's checksum")


async def send_file(
    writer: asyncio.StreamWriter, descriptor: int, length: int, threads: Executor, pause: Pause
) -> None:
    """Send the first `length` bytes of a file. Raises OSError, TimeoutError, PeerError if the file is too short."""
    loop, offset = asyncio.get_running_loop(), 0
    while offset < length:
        data = await loop.run_in_executor(threads, os.pread, descriptor, min(CHUNK_BYTES, length - offset), offset)
        if not data:
            raise PeerError(Code.MISSING, "the file is shorter than recorded")
        offset += len(data)
        writer.write(data)
        async with asyncio.timeout(STALL_S):
            await writer.drain()
        pause_s = pause(len(data))
        if pause_s > 0:
            await asyncio.sleep(pause_s)


class _File:
    """A file that is written in a thread. Its descriptor is a duplicate, because a write may outlive the caller's."""

    def __init__(self, descriptor: int, threads: Executor) -> None:
        self._descriptor = os.dup(descriptor)
        self._threads = threads
        self._digest = hashlib.sha256()
        self._writing: asyncio.Future[None] | None = None

    async def write(self, data: bytes) -> None:
        """Write the data. If the caller is cancelled, the write still ends first. Raises WriteFailed."""
        loop = asyncio.get_running_loop()
        self._writing = loop.run_in_executor(self._threads, self._write, data)
        try:
            await asyncio.shield(self._writing)
        except asyncio.CancelledError:
            done, _ = await asyncio.wait((self._writing,), timeout=STALL_S)
            if not done:
                raise WriteFailed(OSError(errno.ETIMEDOUT, "the disk hangs")) from None
            raise

    def sha256(self) -> str:
        """Checksum of the written bytes, in hex."""
        return self._digest.hexdigest()

    def close(self) -> None:
        """Close the duplicate, at the latest when the last write ends."""
        if self._writing is None:
            os.close(self._descriptor)
        else:
            self._writing.add_done_callback(lambda done: os.close(self._descriptor))

    def _write(self, data: bytes) -> None:
        self._digest.update(data)
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError as error:
            raise WriteFailed(error) from None


class _Window:
    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self.restart()

    def restart(self) -> None:
        self._began_s, self._bytes = time.monotonic(), 0

    def count(self, count: int) -> None:
        """Record received bytes. Raises PeerError if a window ends with too few."""
        self._bytes += count
        took_s = time.monotonic() - self._began_s
        if took_s >= self._pace.window_s:
            if self._bytes < took_s * self._pace.floor_bytes_per_s:
                raise PeerError(Code.SLOW, f"{self._bytes} bytes in {took_s:.1f} s")
            self.restart()
