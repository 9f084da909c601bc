"""Splits segments of a write-ahead log into records (tsdb/docs/format/wal.md in prometheus/prometheus).

A segment has pages of 32 KiB. A record is one or more fragments; a fragment never crosses a page. Each fragment begins
with a type (3 bits), flags of compression, its length and a CRC-32C.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, Final, Literal, NamedTuple

PAGE_BYTES: Final = 32 << 10
HEADER_BYTES: Final = 7
_READ_PAGES: Final = 32
_TYPE_MASK, _SNAPPY, _ZSTD = 0b111, 0b1000, 0b10000
_PAGE_END, _FULL, _FIRST, _MIDDLE, _LAST = range(5)

Compression = Literal["none", "snappy", "zstd"]


class Damaged(Exception):
    """The bytes of a segment are not those of a log.

    Attributes:
        offset: of the first damaged fragment, in bytes from the start of the segment.
        reason: what is wrong there.
    """

    def __init__(self, offset: int, reason: str) -> None:
        """Store the offset and the reason."""
        super().__init__(f"byte {offset}: {reason}")
        self.offset = offset
        self.reason = reason


class Torn(Damaged):
    """The segment ends in the middle of a record: the server still writes it, or it ended at that moment."""


class Record(NamedTuple):
    """A record as it is stored: its fragments with their checksums, still compressed.

    Attributes:
        offset: of its first fragment.
        compression: of the fragments together.
        fragments: pairs of bytes and expected CRC-32C.
    """

    offset: int
    compression: Compression
    fragments: tuple[tuple[bytes, int], ...]

    @property
    def stored(self) -> bytes:
        """The bytes of all fragments."""
        return self.fragments[0][0] if len(self.fragments) == 1 else b"".join(part for part, _ in self.fragments)

    def begin(self, size_bytes: int) -> bytes:
        """Return the first bytes. The first fragment may have fewer, or no byte at all, where a page ends."""
        found = self.fragments[0][0][:size_bytes]
        for part, _ in self.fragments[1:]:
            if len(found) >= size_bytes:
                break
            found += part[: size_bytes - len(found)]
        return found


def records(file: BinaryIO, size_bytes: int) -> Iterator[Record]:
    """Yield the records in the first `size_bytes` of a segment.

    Raises:
        Torn: the last record is not complete.
        Damaged: another fragment cannot be one of a log.
    """
    parts: list[tuple[bytes, int]] = []
    begin = 0
    for base, page in _pages(file, size_bytes):
        position = 0
        while position < len(page):
            kind = page[position] & _TYPE_MASK
            if kind == _PAGE_END:
                if page.count(0, position) != len(page) - position:
                    raise Damaged(base + position, "the rest of a page is not empty")
                break
            at = base + position
            if kind > _LAST:
                raise Damaged(at, f"a fragment has the unknown type {kind}")
            if len(page) - position < HEADER_BYTES:
                if len(page) < PAGE_BYTES:
                    raise Torn(at, "the segment ends in the header of a fragment")
                raise Damaged(at, "a header does not fit into its page")
            length = int.from_bytes(page[position + 1 : position + 3], "big")
            checksum = int.from_bytes(page[position + 3 : position + 7], "big")
            end = position + HEADER_BYTES + length
            if end > PAGE_BYTES:
                raise Damaged(at, f"a fragment of {length} bytes does not fit into its page")
            if end > len(page):
                raise Torn(at, "the segment ends in a fragment")
            if (kind in (_FULL, _FIRST)) != (not parts):
                raise Damaged(at, "fragments of a record are not in order")
            if not parts:
                begin = at
            parts.append((page[position + HEADER_BYTES : end], checksum))
            if kind in (_FULL, _LAST):
                flags = page[position]
                compression: Compression = "snappy" if flags & _SNAPPY else "zstd" if flags & _ZSTD else "none"
                yield Record(begin, compression, tuple(parts))
                parts = []
            position = end
    if parts:
        raise Torn(begin, "the segment ends in a record")


def _pages(file: BinaryIO, size_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield pairs of offset and page. Only the last page may be shorter."""
    base = 0
    while base < size_bytes:
        block = file.read(min(PAGE_BYTES * _READ_PAGES, size_bytes - base))
        if not block:
            return
        if len(block) % PAGE_BYTES and base + len(block) < size_bytes:
            block += file.read(PAGE_BYTES - len(block) % PAGE_BYTES)
        for start in range(0, len(block), PAGE_BYTES):
            yield base + start, block[start : start + PAGE_BYTES]
        base += len(block)


def _table() -> tuple[int, ...]:
    entries = []
    for number in range(256):
        for _ in range(8):
            number = (number >> 1) ^ (0x82F63B78 if number & 1 else 0)
        entries.append(number)
    return tuple(entries)


_TABLE: Final = _table()


def crc32c(data: bytes) -> int:
    """Return the CRC-32C (Castagnoli, RFC 3720) of some bytes. It reads a few MB/s: check samples, not whole logs."""
    state = 0xFFFFFFFF
    for byte in data:
        state = _TABLE[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state ^ 0xFFFFFFFF
