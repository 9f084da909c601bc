"""Decodes records. The size and type of most records are known without decoding them."""

from __future__ import annotations

from typing import Final

from muster.telemetry.replay.wal.fragments import Record

_DECODED_MAX: Final = 256 << 20
_SNAPPY_RATIO_MAX: Final = 32
"""A copy of 64 bytes takes at least 3, so a longer promise is damage, and would only take memory."""
_SNAPPY_SLACK: Final = 64
_LITERAL_LONG: Final = 60
_HEADER_BYTES_MAX: Final = 16
"""Enough for the length in front of a block, the tag of a literal with its length, and one byte."""
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"


class MissingExtra(Exception):
    """The optional dependencies of telemetry are not installed."""


class Undecodable(Exception):
    """A record's bytes are not what its flags say."""


def peek(record: Record) -> tuple[int, int] | None:
    """Return type and decoded size in bytes of a record without decoding it; None if that is not possible.

    Raises:
        Undecodable: it promises an impossible size.
    """
    stored = record.begin(_HEADER_BYTES_MAX)
    if record.compression == "none":
        size = sum(len(part) for part, _ in record.fragments)
        return (stored[0], size) if size else (0, 0)
    if record.compression == "snappy":
        return _peek_snappy(record, stored)
    return None


def decoded(record: Record) -> bytes:
    """Return the decoded record.

    Raises:
        Undecodable: it is damaged.
        MissingExtra: the library for decoding is not installed.
    """
    stored = record.stored
    if record.compression == "none":
        return stored
    try:
        import cramjam
    except ImportError as error:
        raise MissingExtra("compressed records need a library: pip install 'muster[telemetry]'") from error
    try:
        if record.compression == "snappy":
            peek(record)
            return bytes(cramjam.snappy.decompress_raw(stored))
        promised = _zstd_size(stored)
        if promised is None or promised > _DECODED_MAX:
            raise Undecodable("a compressed record promises no possible size")
        return bytes(cramjam.zstd.decompress(stored))
    except cramjam.DecompressionError as error:
        raise Undecodable(f"a compressed record cannot be decoded: {error}") from error


def _peek_snappy(record: Record, stored: bytes) -> tuple[int, int]:
    """Read the length in front of a block, and the first byte of its first literal."""
    size = shift = position = 0
    try:
        while True:
            byte = stored[position]
            position += 1
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        if size == 0:
            return 0, 0
        tag = stored[position]
        length = tag >> 2
        extra = length - _LITERAL_LONG + 1 if length >= _LITERAL_LONG else 0
        first = stored[position + 1 + extra]
    except IndexError:
        raise Undecodable("a compressed record is not complete") from None
    room = sum(len(part) for part, _ in record.fragments) * _SNAPPY_RATIO_MAX + _SNAPPY_SLACK
    if tag & 0b11 or size > min(room, _DECODED_MAX):
        raise Undecodable("a compressed record promises no possible size")
    return first, size


def _zstd_size(stored: bytes) -> int | None:
    """Return the decoded size that the header of a frame names (RFC 8878, section 3.1.1.1); None without one."""
    if len(stored) < 6 or stored[:4] != _ZSTD_MAGIC:
        return None
    flags = stored[4]
    single = bool(flags & 0b100000)
    width = (1 if single else 0, 2, 4, 8)[flags >> 6]
    begin = 5 + (0 if single else 1) + (0, 1, 2, 4)[flags & 0b11]
    if not width or len(stored) < begin + width:
        return None
    return int.from_bytes(stored[begin : begin + width], "little") + (256 if width == 2 else 0)
