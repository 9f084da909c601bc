"""The kernel's own buffer of messages, /dev/kmsg (kernel: Documentation/ABI/testing/dev-kmsg).

Opening it begins with the oldest record that is still there, so faults from before this process started are seen.
Each read is one record with a number of its own: what the kernel had to overwrite before it was read is counted, by
EPIPE and by the numbers, and is a finding itself.
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
"""No record is longer (PRINTK_MESSAGE_MAX, CONSOLE_EXT_LOG_MAX)."""
BATCH_RECORDS: Final = 4096


class _Read(Protocol):
    def __call__(self, file: int, count: int, /) -> bytes: ...


class FileOperations(NamedTuple):
    """The system calls that are used, so that what a real device does only now and then can be had when needed."""

    open: Callable[[Path, int], int] = os.open
    read: _Read = os.read
    close: Callable[[int], None] = os.close


class Kmsg:
    """Reads records until there are none left for now; never waits.

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
        """Yield records as lines, many at once, and what went wrong on the way."""
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
        """What keeps it from being opened, as last told; empty: nothing does."""
        return self._said

    def close(self) -> None:
        """Let go of the device; the next read begins with the oldest record that is still there and not yet seen."""
        if self._file is not None:
            self._do.close(self._file)
        self._file = None

    def _batch(self, file: int) -> tuple[list[bytes], int, str, bool]:
        """Return (records, how many were lost, why it cannot go on, whether there may be more)."""
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
                overrun = True  # how many is told by the number of the next one
                continue
            if not record:
                return records, lost or int(overrun), "", False
            number = _number(record)
            if number is not None:
                if self._next is not None and number < self._next:
                    continue  # seen before the device was opened again
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
    """The sequence number; None in a record that has none."""
    try:
        return int(record.split(b",", 2)[1])
    except (IndexError, ValueError):
        return None
