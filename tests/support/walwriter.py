"""Writes segments of a write-ahead log of Prometheus, as its documentation of the format describes them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import cramjam

from muster.telemetry.replay.wal.fragments import crc32c

PAGE = 32768


def uvarint(value: int) -> bytes:
    """An unsigned number."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def series_record(series: Mapping[int, Mapping[str, str]]) -> bytes:
    """A record of series: labels by ID."""
    out = b"\x01"
    for number, labels in series.items():
        out += struct.pack(">Q", number) + uvarint(len(labels))
        for each in (text.encode() for pair in labels.items() for text in pair):
            out += uvarint(len(each)) + each
    return out


def samples_record(numbers: Iterable[int], at_ms: int = 0) -> bytes:
    """A record with a sample for each series."""
    ids = list(numbers)
    rows = b"".join(uvarint((number - ids[0]) << 1) + b"\x00" + struct.pack(">d", number) for number in ids)
    return b"\x02" + struct.pack(">Qq", ids[0], at_ms) + rows


def samples_with_start_record(number: int, explicit: bool = False) -> bytes:
    """A record of the newer type, with start times that are all as before, or all written out."""
    rows = uvarint(2) + uvarint(1000) + uvarint(1000) + struct.pack(">d", 1)
    marker = b"\x02" + uvarint(300) if explicit else b"\x01"
    return b"\x0b" + rows + (uvarint(2) + uvarint(200) + marker + struct.pack(">d", 2)) * (number - 1)


def segment(
    records: Iterable[bytes], compression: Literal["none", "snappy", "zstd"] = "snappy", after: bytes = b""
) -> bytes:
    """The bytes of a segment that begins with `after`. Records are split where a page ends."""
    out = bytearray(after)
    for record in records:
        flags = {"none": 0, "snappy": 8, "zstd": 16}[compression]
        data = record
        if compression == "snappy":
            data = bytes(cramjam.snappy.compress_raw(record))
        elif compression == "zstd":
            data = bytes(cramjam.zstd.compress(record))
        first = True
        while first or data:
            if PAGE - len(out) % PAGE < 7:  # with just 7, a server writes a fragment of 0 bytes
                out += bytes(PAGE - len(out) % PAGE)
            part = data[: PAGE - len(out) % PAGE - 7]
            data = data[len(part) :]
            kind = 1 if first and not data else 2 if first else 3 if data else 4
            out += bytes([flags | kind]) + struct.pack(">HI", len(part), crc32c(part)) + part
            first = False
    return bytes(out)


def write_segment(folder: Path, number: int, content: bytes) -> Path:
    """Write a segment of that number."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{number:08d}"
    file.write_bytes(content)
    return file
