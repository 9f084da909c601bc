"""Frames of append-only files: length, CRC-32, payload. A torn or damaged frame ends the readable part.

A payload has at least one byte.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_HEADER: Final = struct.Struct("<II")


def frame(payload: bytes) -> bytes:
    """Return the frame of a payload."""
    return _HEADER.pack(len(payload), zlib.crc32(payload)) + payload


def frames(content: bytes, start: int = 0) -> Iterator[tuple[bytes, int]]:
    """Yield (payload, end of the frame) of each complete frame from `start` to the first one that is not intact."""
    position = start
    while position + _HEADER.size <= len(content):
        length, checksum = _HEADER.unpack_from(content, position)
        begin, end = position + _HEADER.size, position + _HEADER.size + length
        if length == 0 or end > len(content):
            return  # a disk that lost power can leave zeros, and they look like empty frames
        payload = content[begin:end]
        if zlib.crc32(payload) != checksum:
            return
        yield payload, end
        position = end


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, after a file was created or renamed there. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
