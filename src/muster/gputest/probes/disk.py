"""Does the disk give back what was written, and how fast?"""

from __future__ import annotations

import os
import tempfile
import time
from hashlib import blake2b

from muster.gputest.codes import Code
from muster.gputest.context import Context

_BLOCK_BYTES = 1 << 20
_MB = 1e6
_BYTES = {1: 16 << 20, 2: 512 << 20, 3: 4 << 30}  # by level


def run(context: Context) -> None:
    """A file in the scratch folder: written, flushed, dropped from the page cache, read; gone at the end."""
    size, folder = _BYTES[context.setup.level], context.setup.scratch
    space = os.statvfs(folder)
    if space.f_bavail * space.f_frsize < 2 * size:
        context.fail(None, Code.DISK_FULL, f"{folder}: less than {2 * size} bytes are free")
        return
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        context.say(None, f"writing to {folder}")
        began, written = time.perf_counter(), blake2b()
        for number in range(size // _BLOCK_BYTES):
            block = blake2b(number.to_bytes(8, "little")).digest() * (_BLOCK_BYTES // 64)
            written.update(block)
            _write(file.fileno(), block)
        os.fsync(file.fileno())
        wrote_s = time.perf_counter() - began
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

        context.say(None, f"reading from {folder}")
        file.seek(0)
        began, read, length = time.perf_counter(), blake2b(), 0
        while block := file.read(_BLOCK_BYTES):
            read.update(block)
            length += len(block)
        read_s = time.perf_counter() - began
    if read.digest() != written.digest():
        context.fail(None, Code.WRONG_DATA, f"{folder}: {length} bytes read are not those that were written")
    context.figure(None, "disk_write_mb_per_s", length / _MB / wrote_s)
    context.figure(None, "disk_read_mb_per_s", length / _MB / read_s)


def _write(file: int, block: bytes) -> None:
    left = memoryview(block)
    while left:
        left = left[os.write(file, left) :]
