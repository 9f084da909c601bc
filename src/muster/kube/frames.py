"""Frames on a byte stream: four bytes with the length of the body, most significant byte first, then the body."""

from __future__ import annotations

import asyncio
import struct
from typing import Final

_LENGTH: Final = struct.Struct(">I")


class FrameTooLong(Exception):
    """The peer announced a frame that is longer than the limit. The rest of the stream cannot be read."""


def frame(body: bytes) -> bytes:
    """Return the frame with this body."""
    return _LENGTH.pack(len(body)) + body


async def read_frame(reader: asyncio.StreamReader, limit_bytes: int) -> bytes:
    """Return the body of the next frame.

    Raises:
        FrameTooLong: the body is longer than the limit. Nothing of it was read.
        IncompleteReadError: the stream ended.
        OSError: the connection broke.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > limit_bytes:
        raise FrameTooLong(f"a frame of {length} bytes is longer than {limit_bytes}")
    return await reader.readexactly(length)
