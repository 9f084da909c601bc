"""Reads log files of any size: a line at a time, plain or gzip, with broken lines counted."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, cast

LINE_MAX_BYTES: Final = 8 << 20
"""Longer lines are skipped. An audit event with request and response objects has at most about twice 1.5 MiB."""
_GZIP: Final = b"\x1f\x8b"
_BROKEN_AT_MAX: Final = 5


class LogFileError(Exception):
    """A log file cannot be read; the message says why."""


@dataclass
class Reading:
    """What was read so far.

    Attributes:
        lines: number of lines that hold something.
        broken: number of lines that are not what they should be, are too long, or end early.
        number: number of all lines.
        broken_at: numbers of the first broken lines, from 1.
    """

    lines: int = 0
    broken: int = 0
    number: int = 0
    broken_at: list[int] = field(default_factory=list)

    def add_broken(self) -> None:
        """Count the current line as broken."""
        self.broken += 1
        if len(self.broken_at) < _BROKEN_AT_MAX:
            self.broken_at.append(self.number)


def log_lines(stream: IO[bytes], reading: Reading) -> Iterator[bytes]:
    """Yield the lines that hold something; `reading` is updated."""
    whole = True
    while True:
        try:
            data = stream.readline(LINE_MAX_BYTES)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            reading.number += 1
            reading.add_broken()
            return
        if not data:
            return
        begins, whole = whole, data.endswith(b"\n")
        if not begins:
            continue
        reading.number += 1
        if not data.strip():
            continue
        reading.lines += 1
        if not whole and len(data) >= LINE_MAX_BYTES:
            reading.add_broken()
            continue
        yield data


@contextmanager
def opened_log(path: Path, since: tuple[int, int] = (0, 0)) -> Iterator[IO[bytes]]:
    """Open a log file, and unpack it if its first bytes are those of gzip.

    Args:
        path: the file.
        since: inode and size at an earlier moment; what it held then is skipped, unless it is compressed.

    Raises:
        LogFileError: the file cannot be opened or read.
    """
    inode, size = since
    try:
        with path.open("rb") as file:
            head = file.read(2)
            file.seek(0)
            if head != _GZIP:
                if os.fstat(file.fileno()).st_ino == inode:
                    file.seek(size)
                yield file
                return
            with gzip.GzipFile(fileobj=file) as unpacked:
                yield cast("IO[bytes]", unpacked)
    except OSError as error:
        if isinstance(error, gzip.BadGzipFile):
            raise LogFileError(f"cannot read {path}: it is not a whole gzip file") from error
        raise LogFileError(f"cannot read {path}: {error.strerror or error}") from error
