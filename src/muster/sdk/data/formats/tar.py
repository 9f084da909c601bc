"""Tar files in the layout of WebDataset: adjacent members with one prefix are the fields of one sample.

The prefix is the member's path up to the first dot of its base name, and the rest is the field. Members without an
extension and hidden ones do not belong to a sample.
"""

from __future__ import annotations

from typing import Iterator, NamedTuple

from muster.sdk.data.formats.base import Format, Piece, Read
from muster.sdk.data.formats.names import split

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_LONGEST_HEADER = 1 << 20


class _Member(NamedTuple):
    name: str
    start: int
    """Where its first header begins, with the extended ones."""
    data: int
    size: int
    regular: bool

    @property
    def end(self) -> int:
        return self.data + _padded(self.size)


class TarFormat(Format):
    """Uncompressed tar files (ustar, pax, GNU)."""

    name = "tar"
    scans = True

    def accepts(self, key: str) -> bool:
        """Objects whose keys end in .tar."""
        return key.endswith(".tar")

    def pieces(self, read: Read, size_bytes: int) -> Iterator[Piece]:
        """One piece for each member of a sample."""
        current = ""
        fields: set[str] = set()
        for member in _members(read, size_bytes):
            name, field = _sample(member)
            if not field:
                continue
            if name != current:
                current, fields = name, set()
            if field in fields:
                raise ValueError(f"sample {name!r} has two members {field!r}")
            yield Piece(member.start, member.end, not fields)
            fields.add(field)

    def parse(self, key: str, data: memoryview) -> tuple[str, dict[str, bytes]]:
        """Cut the members of one sample out of its bytes."""
        sample = ""
        fields: dict[str, bytes] = {}
        for member in _members(lambda start, length: bytes(data[start : start + length]), len(data), whole=False):
            name, field = _sample(member)
            if field:
                sample = name
                fields[field] = bytes(data[member.data : member.data + member.size])
        if not fields:
            raise ValueError("no sample where the index has one")
        return sample, fields


def _sample(member: _Member) -> tuple[str, str]:
    """Sample and field of a member; ("", "") if it does not belong to a sample."""
    name, field = split(member.name)
    return (name, field) if member.regular and field and name and not name.endswith("/") else ("", "")


def _members(read: Read, size_bytes: int, whole: bool = True) -> Iterator[_Member]:
    """Walk through the members. `whole`: the archive must have its end marker, or it counts as truncated."""
    at = start = 0
    long_name = ""  # from the extended headers before a member, as the next one
    extended: dict[str, str] = {}
    while at < size_bytes:
        header = read(at, _BLOCK)
        if header == _ZEROS:
            return
        if len(header) < _BLOCK:
            raise ValueError(f"truncated in the header at byte {at}")
        name, size, kind = _header(header, at)
        if "size" in extended and kind not in "xgLK":
            size = _whole_number(extended["size"], at)
        data = at + _BLOCK
        if data + _padded(size) > size_bytes and (whole or data + size > size_bytes):
            raise ValueError(f"truncated: {name!r} at byte {at} has {size} bytes, and the shard ends before")
        at = data + _padded(size)
        if kind in "xgLK":
            if size > _LONGEST_HEADER:
                raise ValueError(f"the extended header at byte {data - _BLOCK} has {size} bytes")
            if kind == "x":
                extended = _pax(read(data, size), data)
            elif kind == "L":
                long_name = _text(read(data, size))
            continue
        if kind == "S" or (extended and any(field.startswith("GNU.sparse") for field in extended)):
            raise ValueError(f"{name!r} is a sparse file: write the archive without --sparse")
        yield _Member(extended.get("path") or long_name or name, start, data, size, kind in "0\x007")
        start, long_name, extended = at, "", {}
    if whole and size_bytes:
        raise ValueError("truncated: the archive has no end marker")


def _header(header: bytes, at: int) -> tuple[str, int, str]:
    """Name, size and type of a ustar or GNU header."""
    stored = header[148:156]
    if _number(stored, at) != sum(header.translate(None, b"\0")) - sum(stored) + 8 * 32:  # fewer bytes to add
        raise ValueError(f"the header at byte {at} has a wrong checksum")
    name = _text(header[:100])
    # GNU has other fields there
    prefix = _text(header[345:500]) if header[345] and header[257:263] == b"ustar\0" else ""
    size = _number(header[124:136], at)
    return (f"{prefix}/{name}" if prefix else name), size, chr(header[156])


def _number(field: bytes, at: int) -> int:
    """An octal number, or a binary one (GNU, for 8 GiB and more)."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    try:
        return int(field.strip(b" \0") or b"0", 8)
    except ValueError:
        raise ValueError(f"the header at byte {at} has an unreadable number") from None


def _pax(data: bytes, at: int) -> dict[str, str]:
    """The records "LENGTH NAME=VALUE" of an extended header."""
    fields: dict[str, str] = {}
    while data:
        length = _whole_number(_text(data.partition(b" ")[0]), at)
        record = data[:length]
        name, equals, value = record.partition(b" ")[2].partition(b"=")
        if not equals or not value.endswith(b"\n") or len(record) < length:
            raise ValueError(f"the extended header at byte {at} is damaged")
        fields[_text(name)] = _text(value[:-1])
        data = data[length:]
    return fields


def _whole_number(text: str, at: int) -> int:
    if not text.isdigit():
        raise ValueError(f"the extended header at byte {at} is damaged")
    return int(text)


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _padded(size: int) -> int:
    return -(-size // _BLOCK) * _BLOCK
