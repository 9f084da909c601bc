"""Attributes of netlink messages: length, type, payload, padded to four bytes (include/uapi/linux/netlink.h)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final

_HEAD: Final = struct.Struct("=HH")
NESTED: Final = 0x8000
_TYPE_MASK: Final = 0x3FFF


def attribute(type_: int, payload: bytes) -> bytes:
    """Return one attribute, padded."""
    length = _HEAD.size + len(payload)
    return _HEAD.pack(length, type_) + payload + b"\0" * (-length % 4)


def nested(type_: int, attributes: Iterable[bytes]) -> bytes:
    """Return an attribute that holds attributes."""
    return attribute(type_ | NESTED, b"".join(attributes))


def text(type_: int, value: str) -> bytes:
    """Return an attribute with a zero-terminated string."""
    return attribute(type_, value.encode() + b"\0")


def u32(type_: int, value: int) -> bytes:
    """Return an attribute with 32 bits in the host's byte order."""
    return attribute(type_, struct.pack("=I", value))


def attributes(data: bytes | memoryview, offset: int = 0) -> Iterator[tuple[int, memoryview]]:
    """Yield (type, payload) of each attribute from `offset` on. It ends at the first one that is cut off."""
    view = memoryview(data)
    for type_, start, end in spans(view, offset, len(view)):
        yield type_, view[start:end]


def spans(data: bytes | memoryview, offset: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield (type, first byte, end) of the payload of each attribute. It ends at the first one that is cut off."""
    while offset + _HEAD.size <= end:
        length, type_ = _HEAD.unpack_from(data, offset)
        if length < _HEAD.size or offset + length > end:
            return
        yield type_ & _TYPE_MASK, offset + _HEAD.size, offset + length
        offset += length + (-length % 4)


def decoded(value: bytes | memoryview) -> str:
    """Return a zero-terminated name. Names of links may hold any bytes: those that are not UTF-8 are replaced."""
    return bytes(value).rstrip(b"\0").decode(errors="replace")


def by_type(data: bytes | memoryview, offset: int = 0) -> dict[int, memoryview]:
    """Return the attributes by type; of several with one type, the last."""
    return dict(attributes(data, offset))
