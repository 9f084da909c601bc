"""The store's file: a snapshot, then the changes since. One process holds it.

A change is in the file before the caller continues, so a killed process loses nothing. What must survive a power loss
as well is flushed to the disk first; callers that wait at the same time share one flush. When the file has grown, a new
one with a snapshot is renamed over it.

A kill during a write can leave an incomplete record at the end, and a power loss can damage all that was not flushed.
Both end the readable part, and the rest is cut off. Within the same boot of the node there was no power loss, so a
damaged record before the end means that something else wrote into the file. Then it is refused, because addresses of
running pods could be given out twice.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from muster.kube.fileframes import frame, frames, sync_folder
from muster.kube.filelock import lock_file
from muster.network.addresses.attachment import Assigned, AttachmentKey
from muster.network.addresses.block import Block
from muster.network.addresses.errors import StoreError, StoreInUse

FORMAT: Final = 1
COMPACT_BYTES: Final = 1 << 20
_JOURNAL: Final = "journal"
_TEMPORARY: Final = "journal.new"


class Head(msgspec.Struct, frozen=True, tag="head", array_like=True):
    """The first record: the format, and the boot in which the file was begun."""

    format: int
    boot_id: str


class PutBlock(msgspec.Struct, frozen=True, tag="block", array_like=True):
    """A block as it is from now on."""

    block: Block


class RemoveBlock(msgspec.Struct, frozen=True, tag="noblock", array_like=True):
    """A block that is gone."""

    cidr: str


class PutAssigned(msgspec.Struct, frozen=True, tag="assigned", array_like=True):
    """An attachment as it is from now on."""

    assigned: Assigned


class Release(msgspec.Struct, frozen=True, tag="released", array_like=True):
    """An attachment that ended; its addresses cool down."""

    key: AttachmentKey
    boot_id: str
    at_s: float


class Cool(msgspec.Struct, frozen=True, tag="cooling", array_like=True):
    """In a snapshot: an address that cools down."""

    ip: str
    boot_id: str
    at_s: float


Record = Head | PutBlock | RemoveBlock | PutAssigned | Release | Cool

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Record)


class Journal:
    """The file in `folder`, which is created with mode 0700.

    Args:
        folder: the store's folder.
        boot_id: ID of the node's boot.

    Raises:
        StoreInUse: another process holds the folder.
        StoreError: the file is damaged, or of another format, or the disk refuses.
    """

    def __init__(self, folder: Path, boot_id: str) -> None:
        self._folder = folder
        self._boot_id = boot_id
        self._write = threading.Lock()
        self._sync = threading.Lock()
        self._descriptor = -1
        self._end = 0
        self._durable = 0
        self._generation = 0
        self._compact_at = COMPACT_BYTES
        self._broken = ""
        self._lock = _lock(folder)
        try:
            self.records = self._open()
        except BaseException:
            self.close()
            raise

    def append(self, record: Record) -> tuple[int, int]:
        """Write a record and return its place for `flush`. Raises StoreError; then nothing is written."""
        data = frame(_encoder.encode(record))
        with self._write:
            self._check()
            try:
                _write_all(self._descriptor, data)
            except OSError as error:
                try:
                    os.ftruncate(self._descriptor, self._end)  # an incomplete record would hide later ones
                except OSError as second:
                    self._broken = f"cannot be repaired after a failed write: {second}"
                raise StoreError(f"{self._folder / _JOURNAL}: {error}; free or repair the disk") from None
            self._end += len(data)
            return self._generation, self._end

    def flush(self, place: tuple[int, int]) -> None:
        """Wait until a record is on the disk. Callers share flushes. Raises StoreError."""
        with self._sync:
            self._check()
            generation, end = place
            if generation < self._generation or end <= self._durable:
                return
            written = self._end
            try:
                os.fdatasync(self._descriptor)
            except OSError as error:
                # The kernel may have dropped the pages, so a second flush would succeed without writing them.
                self._broken = f"the disk refused a flush: {error}"
                self._check()
            self._durable = written

    @property
    def is_large(self) -> bool:
        """Whether `compact` is worth its time."""
        return self._end > self._compact_at

    def compact(self, records: Iterable[Record]) -> None:
        """Replace the file with a snapshot. If the disk refuses, the old file stays in use, and grows."""
        with self._sync, self._write:
            self._check()
            try:
                descriptor, size = self._new(records)
            except OSError as error:
                if not self._is_in_place():
                    self._broken = f"the disk refused a new file: {error}"
                    self._check()
                self._compact_at = self._end + COMPACT_BYTES  # the next try; until then the old file is complete
                return
            self._compact_at = max(COMPACT_BYTES, 2 * size)
            os.close(self._descriptor)
            self._descriptor, self._end, self._durable = descriptor, size, size
            self._generation += 1

    def close(self) -> None:
        """Release the folder."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        self._broken = self._broken or "it is closed"

    def _is_in_place(self) -> bool:
        """Whether the file in use is the one that the next start reads."""
        try:
            return os.path.samestat(os.fstat(self._descriptor), os.stat(self._folder / _JOURNAL))
        except OSError:
            return False

    def _check(self) -> None:
        if self._broken:
            raise StoreError(f"{self._folder / _JOURNAL}: {self._broken}; restart the agent once the disk works")

    def _open(self) -> list[Record]:
        path = self._folder / _JOURNAL
        try:
            (self._folder / _TEMPORARY).unlink(missing_ok=True)
            content = path.read_bytes() if path.exists() else b""
            records, end = self._read(content, path)
            if not records:
                self._descriptor, self._end = self._new(())
            else:
                self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
                if end < len(content):
                    os.ftruncate(self._descriptor, end)
                os.fdatasync(self._descriptor)
                self._end = end
            self._durable = self._end
        except OSError as error:
            raise StoreError(f"{path}: {error}; free or repair the disk") from None
        return records

    def _read(self, content: bytes, path: Path) -> tuple[list[Record], int]:
        records: list[Record] = []
        end = 0
        for payload, after in frames(content):
            try:
                records.append(_decoder.decode(payload))
            except msgspec.DecodeError as error:
                raise StoreError(f"{path}: a record is not of this version: {error}. {_REMEDY}") from None
            end = after
        if not records:
            if content.strip(b"\0"):
                raise StoreError(f"{path} is not a journal, or its first record is damaged. {_REMEDY}")
            return [], 0
        head = records[0]
        if not isinstance(head, Head) or head.format != FORMAT:
            raise StoreError(f"{path} is of another version of Muster. {_REMEDY}")
        if self._written_in_this_boot(records) and _has_frame(content, end + 1):
            raise StoreError(f"{path} is damaged at byte {end}, before its end. {_REMEDY}")
        return records, end

    def _written_in_this_boot(self, records: list[Record]) -> bool:
        boots = (record.boot_id for record in reversed(records) if isinstance(record, Head | Release | Cool))
        newest = next(boots, "")
        attached = next((r.assigned.boot_id for r in reversed(records) if isinstance(r, PutAssigned)), "")
        return self._boot_id in (newest, attached)

    def _new(self, records: Iterable[Record]) -> tuple[int, int]:
        temporary = self._folder / _TEMPORARY
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(temporary, flags, 0o600)
        try:
            head: Record = Head(FORMAT, self._boot_id)
            data = b"".join(frame(_encoder.encode(record)) for record in (head, *records))
            _write_all(descriptor, data)
            os.fsync(descriptor)
            os.rename(temporary, self._folder / _JOURNAL)
            sync_folder(self._folder)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        return descriptor, len(data)


_REMEDY: Final = (
    "Addresses of running pods would be given out twice, so no pod gets one. "
    "Drain the node, delete the file, and reboot the node"
)


def _lock(folder: Path) -> int:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return lock_file(folder / "lock")
    except BlockingIOError:
        raise StoreInUse(
            f"another agent uses {folder}; two agents on one node would give out addresses twice"
        ) from None
    except OSError as error:
        raise StoreError(f"{folder}: {error}; mount a writable folder of the node there") from None


def _has_frame(content: bytes, start: int) -> bool:
    """Whether an intact, non-empty frame begins at or after `start`."""
    return any(next(frames(content, at), (b"", 0))[0] for at in range(start, len(content)))


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
