"""The wire format of protobuf: fields of a message, without a schema.

Encoding: https://protobuf.dev/programming-guides/encoding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
WIDTHS: Final = {FIXED64: 8, FIXED32: 4}
_MAX_VARINT_BYTES: Final = 10


class WireError(ValueError):
    """Bytes that are not what the other side should send."""


def tag(number: int, wire: int = BYTES) -> int:
    """Returns a field's tag."""
    return number << 3 | wire


def varint(data: bytes, position: int) -> tuple[int, int]:
    """Returns a number and where it ends. Raises WireError or IndexError."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
        if shift >= 7 * _MAX_VARINT_BYTES:
            raise WireError("a number has more than 10 bytes")


def fields(data: bytes, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields (tag, where the field starts, where its value starts, where it ends). Raises WireError."""
    try:
        while start < end:
            key, position = varint(data, start)
            wire = key & 7
            if wire == BYTES:
                length, position = varint(data, position)
                stop = position + length
            elif wire == VARINT:
                _, stop = varint(data, position)
            elif wire in WIDTHS:
                stop = position + WIDTHS[wire]
            else:
                raise WireError(f"wire type {wire} is unknown")
            if stop > end:
                raise WireError("a field is cut short")
            yield key, start, position, stop
            start = stop
    except IndexError:
        raise WireError("a field is cut short") from None
