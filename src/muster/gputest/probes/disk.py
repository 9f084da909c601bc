"""Tests the disk: it must return what was written, and its speed is measured."""

from __future__ import annotations

import os
import tempfile
import time
from hashlib import blake2b

from muster.gputest.codes import Code
from muster.gputest.context import Context

_PIECE_BYTES = 16 << 20
_MB = 1e6
_BYTES = {1: 16 << 20, 2: 1 << 30, 3: 8 << 30}
"""The largest size, by level."""


def run(context: Context) -> None:
    """Write and flush a file in the scratch folder, drop it from the page cache, and read it. It is always deleted.

    It works in pieces, so that a slow disk gets less to write and does not count as hung.
    """
    most, folder = _BYTES[context.setup.level], context.setup.scratch
    space = os.statvfs(folder)
    if space.f_bavail * space.f_frsize < 2 * most:
        context.fail(None, Code.DISK_FULL, f"{folder}: less than {2 * most} bytes are free")
        return
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        context.say(None, f"writing to {folder}")
        began, written, length = time.perf_counter(), blake2b(), 0
        while not length or (length < most and context.time_left()):
            piece = blake2b(length.to_bytes(8, "little")).digest() * (_PIECE_BYTES // 64)
            written.update(piece)
            _write(file.fileno(), piece)
            os.fsync(file.fileno())
            length += len(piece)
        wrote_s = time.perf_counter() - began
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

        context.say(None, f"reading from {folder}")
        file.seek(0)
        began, read = time.perf_counter(), blake2b()
        while piece := file.read(_PIECE_BYTES):
            read.update(piece)
        read_s = time.perf_counter() - began
    if read.digest() != written.digest():
        context.fail(None, Code.WRONG_DATA, f"{folder}: {length} bytes were written, others were read")
    context.figure(None, "disk_write_mb_per_s", length / _MB / wrote_s)
    context.figure(None, "disk_read_mb_per_s", length / _MB / read_s)


def _write(file: int, piece: bytes) -> None:
    left = memoryview(piece)
    while left:
        left = left[os.write(file, left) :]
