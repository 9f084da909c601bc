"""Reads and patches protobuf messages without decoding what is not asked for.

Encoding: https://protobuf.dev/programming-guides/encoding. As there, the last of several values counts, and several
parts of one message are merged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from muster.kube.protobuf import BYTES, VARINT, WIDTHS, WireError, fields, tag, varint

_FLAGS: Final = ("false", "true")

# what to do with a field, by its tag: put a text under this name, or what one of the classes below says
Wanted = dict[int, Any]
Texts = dict[str, str]


class Number(NamedTuple):
    """Puts a number under a name, as decimal text."""

    name: str


class Flag(NamedTuple):
    """Puts a bool under a name, as `true` or `false`."""

    name: str


class Entry(NamedTuple):
    """Puts an entry of a map from texts to texts under a name."""

    name: str


def read(data: bytes, start: int, end: int, wanted: Wanted, found: dict[str, Any]) -> None:
    """Puts the wanted fields of a message into `found`; a dict in `wanted` is for the fields of an inner message.

    Raises:
        WireError: not a message.
    """
    try:
        _read(data, start, end, wanted, found)
    except IndexError:
        raise WireError("a field is cut short") from None
    except UnicodeDecodeError as error:
        raise WireError(f"a text is not UTF-8: {error}") from None


def _read(data: bytes, start: int, end: int, wanted: Wanted, found: dict[str, Any]) -> None:
    """As `read`. This runs for each field of each object, so that one-byte tags and lengths are read in place.

    A field that is cut short moves `start` beyond `end`, which is noticed at last.
    """
    get = wanted.get
    while start < end:
        key = data[start]
        if key < 0x80:
            start += 1
        else:
            key, start = varint(data, start)
        wire = key & 7
        if wire == BYTES:
            length = data[start]
            if length < 0x80:
                start += 1
            else:
                length, start = varint(data, start)
            action = get(key)
            if action is not None:
                stop = start + length
                if action.__class__ is str:
                    found[action] = data[start:stop].decode()
                elif action.__class__ is dict:
                    _read(data, start, stop, action, found)
                else:
                    _add_entry(data, start, stop, found.setdefault(action.name, {}))
            start += length
        elif wire == VARINT:
            count = data[start]
            if count < 0x80:
                start += 1
            else:
                count, start = varint(data, start)
            action = get(key)
            if action is not None:
                found[action.name] = _FLAGS[count > 0] if action.__class__ is Flag else str(count)
        elif wire in WIDTHS:
            start += WIDTHS[wire]
        else:
            raise WireError(f"wire type {wire} is unknown")
    if start > end:
        raise WireError("a field is cut short")


def _add_entry(data: bytes, start: int, stop: int, entries: Texts) -> None:
    """Mostly the key and the value stand in this order, each shorter than 128 bytes."""
    size_bytes = data[start + 1] if stop - start > 3 else 0x80
    middle = start + 2 + size_bytes
    if (
        size_bytes < 0x80
        and middle + 1 < stop
        and data[start] == _ENTRY_KEY
        and data[middle] == _ENTRY_VALUE
        and middle + 2 + data[middle + 1] == stop
    ):
        entries[data[start + 2 : middle].decode()] = data[middle + 2 : stop].decode()
    else:
        key, value = entry(data, start, stop)
        entries[key] = value


def entry(data: bytes, start: int, end: int) -> tuple[str, str]:
    """Returns the key and the value of an entry of a map. Raises WireError or UnicodeDecodeError."""
    key = value = b""
    for field_tag, _, first, stop in fields(data, start, end):
        if field_tag == _ENTRY_KEY:
            key = data[first:stop]
        elif field_tag == _ENTRY_VALUE:
            value = data[first:stop]
    return key.decode(), value.decode()


_ENTRY_KEY, _ENTRY_VALUE = tag(1), tag(2)


def number(value: int) -> bytes:
    """Returns a varint; negative numbers take 10 bytes, as int32 and int64 do."""
    value &= 0xFFFFFFFFFFFFFFFF
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def numbered(field_number: int, value: int) -> bytes:
    """Returns a field that holds a number."""
    return number(tag(field_number, VARINT)) + number(value)


def sized(field_number: int, value: bytes) -> bytes:
    """Returns a field that holds bytes, a text or a message."""
    return number(tag(field_number)) + number(len(value)) + value


def replaced(data: bytes, field_number: int, change: Callable[[bytes], bytes]) -> bytes:
    """Returns a message in which each value of a field of bytes was changed, with its length. Raises WireError."""
    wanted = tag(field_number)
    pieces = []
    kept = 0
    for field_tag, start, first, stop in fields(data, 0, len(data)):
        if field_tag == wanted:
            pieces += [data[kept:start], sized(field_number, change(data[first:stop]))]
            kept = stop
    if not pieces:
        raise WireError(f"a message has no field {field_number}")
    return b"".join((*pieces, data[kept:]))


def without(data: bytes, field_number: int) -> bytes:
    """Returns a message without a field. Raises WireError."""
    parts = fields(data, 0, len(data))
    return b"".join(data[start:stop] for key, start, _, stop in parts if key >> 3 != field_number)
