"""Reads the kernel's message buffer, /dev/kmsg (kernel: Documentation/ABI/testing/dev-kmsg).

Reading begins with the oldest record, so faults from before this process started are found. Each read returns one
numbered record. If the kernel overwrote records before they were read, EPIPE and the numbers show how many, and the
loss is itself a finding.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from muster.fleet.health.finding import Finding

KMSG: Final = Path("/dev/kmsg")
RECORD_BYTES: Final = 8192
"""The longest possible record (PRINTK_MESSAGE_MAX, CONSOLE_EXT_LOG_MAX)."""
BATCH_RECORDS: Final = 4096


class _Read(Protocol):
    def __call__(self, file: int, count: int, /) -> bytes: ...


class FileOperations(NamedTuple):
    """The system calls in use. Tests replace them to produce rare errors of a real device."""

    open: Callable[[Path, int], int] = os.open
    read: _Read = os.read
    close: Callable[[int], None] = os.close


class Kmsg:
    """Reads records until there are none left for now; never blocks.

    Args:
        path: the device.
        operations: the system calls.
    """

    def __init__(self, path: Path = KMSG, operations: FileOperations | None = None) -> None:
        self.path = path
        self._do = operations or FileOperations()
        self._file: int | None = None
        self._next: int | None = None
        self._said = ""

    def read(self, now_s: float) -> Iterator[bytes | Finding]:
        """Yield records as lines, many at once, and findings about problems with reading."""
        if self._file is None:
            try:
                self._file = self._do.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                code = _OPENING.get(error.errno or 0, "unreadable")
                if code != self._said:
                    self._said = code
                    yield self._finding(code, 1, now_s, f"cannot be opened: {error.strerror}; faults are not seen")
                return
            self._said = ""
        more = True
        while more:
            records, lost, broken, more = self._batch(self._file)
            if records:
                yield b"\n".join(records) + b"\n"
            if lost:
                what = "records were overwritten before they were read; there may have been faults among them"
                yield self._finding("overrun", lost, now_s, f"{lost} {what}")
            if broken:
                yield self._finding("unreadable", 1, now_s, f"cannot be read: {broken}; it is opened again")
                self.close()
                return

    @property
    def trouble(self) -> str:
        """Why it cannot be opened, as last reported; "" if it can."""
        return self._said

    def close(self) -> None:
        """Close the device. The next read begins with the oldest record that was not read yet."""
        if self._file is not None:
            self._do.close(self._file)
        self._file = None

    def _batch(self, file: int) -> tuple[list[bytes], int, str, bool]:
        """Return (records, number of lost records, why reading failed, whether there may be more)."""
        records: list[bytes] = []
        lost = 0
        overrun = False
        for _ in range(BATCH_RECORDS):
            try:
                record = self._do.read(file, RECORD_BYTES)
            except InterruptedError:
                continue
            except OSError as error:
                if error.errno == errno.EAGAIN:
                    return records, lost or int(overrun), "", False
                if error.errno != errno.EPIPE:
                    return records, lost or int(overrun), error.strerror or "error", False
                overrun = True  # the next record's number shows how many
                continue
            if not record:
                return records, lost or int(overrun), "", False
            number = _number(record)
            if number is not None:
                if self._next is not None and number < self._next:
                    continue  # read before the device was opened again
                if self._next is not None and number > self._next:
                    lost += number - self._next
                    overrun = False
                self._next = number + 1
            records.append(record.rstrip(b"\n"))
        return records, lost or int(overrun), "", True

    def _finding(self, code: str, count: int, now_s: float, message: str) -> Finding:
        return Finding(
            check="kernel-log", component=str(self.path), code=code, count=count, first_s=now_s, last_s=now_s,
            message=message,
        )  # fmt: skip


_OPENING: Final = {errno.EACCES: "permission", errno.EPERM: "permission", errno.ENOENT: "missing"}


def _number(record: bytes) -> int | None:
    """Return the sequence number; None if the record has none."""
    try:
        return int(record.split(b",", 2)[1])
    except (IndexError, ValueError):
        return None
