"""The store on disk: a snapshot and an append-only log, in a folder that only one process may hold.

Every record is in the log before a client sees the change, so a killed process loses nothing that was
answered. `fdatasync` follows in groups, at most `SYNC_INTERVAL_S` later, so a machine that loses power may
lose that much. A record is `length, crc32, msgpack`; a torn or damaged tail is cut off when the log is
read. Compaction writes the next generation's snapshot beside the old one and renames it into place; the
newest complete snapshot is the truth.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from muster.kube.fileframes import frame, frames, sync_folder

SYNC_INTERVAL_S = 0.1
COMPACT_BYTES = 16 << 20


class Locked(Exception):
    """Another process holds the state folder."""


class Record(msgspec.Struct, array_like=True, frozen=True):
    """One change: `data` is the object's JSON, empty when it was deleted."""

    version: int
    resource: str
    key: str
    data: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


class Journal:
    """The state folder of one server.

    Raises:
        Locked: on opening, when another process holds the folder.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise Locked(f"{folder} is in use by another server") from None
        self.truncated_bytes = 0
        self._generation = max((g for g, _ in self._generations("snapshot")), default=0)
        self._log = os.open(self._path("log"), os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._bytes = 0
        self._compact_at = COMPACT_BYTES
        self._dirty = False
        self._remove_old()

    def snapshot(self) -> Iterator[Record]:
        """Yield the snapshot. The first record has only the snapshot's version."""
        path = self._path("snapshot")
        if path.exists():
            for record, _ in _read(path.read_bytes()):
                yield record

    def log(self) -> Iterator[Record]:
        """Yield the changes since the snapshot, then remove an incomplete record at the end."""
        content = self._path("log").read_bytes()
        end = 0
        for record, position in _read(content):
            yield record
            end = position
        self.truncated_bytes = len(content) - end
        if self.truncated_bytes:
            os.ftruncate(self._log, end)
        self._bytes = end

    def append(self, record: Record) -> None:
        """Write one change. After the return, the change survives a kill of the process."""
        frame = _frame(record)
        view = memoryview(frame)
        start = self._bytes
        try:
            while view:
                written = os.write(self._log, view)
                view = view[written:]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._log, start)  # an incomplete record must not hide later ones
            raise
        self._bytes = start + len(frame)
        self._dirty = True

    @property
    def wants_compaction(self) -> bool:
        """Returns whether the log has outgrown the snapshot."""
        return self._bytes > self._compact_at

    def compact(self, version: int, records: Iterable[Record]) -> None:
        """Write a snapshot of all objects at `version`, and start a new log."""
        old = self._generation
        temporary = self._folder / f"snapshot-{old + 1}.tmp"
        size = 0
        with open(temporary, "wb") as file:
            size += file.write(_frame(Record(version, "", "", b"")))
            for record in records:
                size += file.write(_frame(record))
            file.flush()
            os.fsync(file.fileno())
        log = os.open(
            self._folder / f"log-{old + 1}", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        os.rename(temporary, self._folder / f"snapshot-{old + 1}")
        sync_folder(self._folder)
        os.close(self._log)
        self._log, self._generation, self._bytes = log, old + 1, 0
        self._compact_at = max(COMPACT_BYTES, 2 * size)
        self._remove_old()

    async def sync_forever(self) -> None:
        """Flush written records to the disk at intervals, for ever."""
        while True:
            await asyncio.sleep(SYNC_INTERVAL_S)
            if self._dirty:
                self._dirty = False
                descriptor = os.dup(self._log)  # compaction may close the log in the meantime
                try:
                    await asyncio.to_thread(os.fdatasync, descriptor)
                finally:
                    os.close(descriptor)

    def close(self) -> None:
        """Flush, and release the folder."""
        os.fdatasync(self._log)
        os.close(self._log)
        os.close(self._lock)

    def _path(self, kind: str) -> Path:
        return self._folder / f"{kind}-{self._generation}"

    def _generations(self, kind: str) -> Iterator[tuple[int, Path]]:
        for path in self._folder.glob(f"{kind}-*"):
            number = path.name.partition("-")[2]
            if number.isdigit():
                yield int(number), path

    def _remove_old(self) -> None:
        for kind in ("snapshot", "log"):
            for generation, path in self._generations(kind):
                if generation != self._generation:
                    path.unlink(missing_ok=True)
        for path in self._folder.glob("snapshot-*.tmp"):
            path.unlink(missing_ok=True)


def _frame(record: Record) -> bytes:
    return frame(_encoder.encode(record))


def _read(content: bytes) -> Iterator[tuple[Record, int]]:
    for payload, end in frames(content):
        try:
            record = _decoder.decode(payload)
        except msgspec.DecodeError:
            return
        yield record, end
