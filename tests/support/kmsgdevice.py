"""A /dev/kmsg that does when asked what a real one does only now and then."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from muster.fleet.health.kmsg import FileOperations

PATH = Path("/dev/kmsg")


def record(number: int, text: str = "eth0: renamed") -> bytes:
    return f"6,{number},{number * 1000},-;{text}\n SUBSYSTEM=net\n".encode()


class Device:
    """A /dev/kmsg whose reads are given beforehand: records, or the errors a real one gives."""

    def __init__(self, *reads: bytes | int) -> None:
        self.reads = list(reads)
        self.refuses = 0
        self.open = 0

    def operations(self) -> FileOperations:
        return FileOperations(self.opened, self.read, self.close)

    def opened(self, path: Path, flags: int) -> int:
        assert (path, flags & os.O_NONBLOCK) == (PATH, os.O_NONBLOCK)
        if self.refuses:
            raise OSError(self.refuses, os.strerror(self.refuses))
        self.open += 1
        return 3

    def read(self, file: int, count: int, /) -> bytes:
        if not self.reads:
            raise BlockingIOError(errno.EAGAIN, "again")
        each = self.reads.pop(0)
        if isinstance(each, int):
            raise OSError(each, os.strerror(each))
        return each

    def close(self, file: int) -> None:
        self.open -= 1
