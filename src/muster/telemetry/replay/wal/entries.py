"""Counts entries in a decoded record of a write-ahead log (tsdb/record/record.go in prometheus/prometheus)."""

from __future__ import annotations

from collections.abc import Set
from enum import IntEnum
from typing import Final, NamedTuple
from zlib import crc32

from muster.kube.protobuf import varint


class Kind(IntEnum):
    """Type of a record; its first byte. Prometheus ignores types that it does not know."""

    SERIES = 1
    SAMPLES = 2
    TOMBSTONES = 3
    EXEMPLARS = 4
    MMAP_MARKERS = 5
    METADATA = 6
    HISTOGRAMS = 7
    FLOAT_HISTOGRAMS = 8
    CUSTOM_HISTOGRAMS = 9
    CUSTOM_FLOAT_HISTOGRAMS = 10
    SAMPLES_WITH_START = 11
    HISTOGRAMS_WITH_START = 12
    FLOAT_HISTOGRAMS_WITH_START = 13
    MIN_VALID_TIME = 14


_VALUE_BYTES: Final = 8
_BASE_BYTES: Final = 1 + 8 + 8
_EXPLICIT_START: Final = 2
"""Marker of a sample that is followed by its own start time; 0 and 1 mean none, and that of the sample before."""


class Entries(NamedTuple):
    """Entries of a record.

    Attributes:
        number: of series or samples.
        label_bytes: bytes of the names and values of labels; 0 for samples.
        labels: pairs of name and value; 0 for samples.
        pairs: a checksum of each different pair; empty for samples.
    """

    number: int
    label_bytes: int = 0
    labels: int = 0
    pairs: Set[int] = frozenset()


def count_series(record: bytes) -> Entries:
    """Count the series of a record of that type. Raises ValueError if it is not complete."""
    position, count, label_bytes, labels = 1, 0, 0, 0
    pairs: set[int] = set()
    try:
        while position < len(record):
            position += 8
            own, position = varint(record, position)
            labels += own
            for _ in range(own):
                begin = position
                for _ in range(2):
                    length = record[position]
                    position += 1
                    if length >= 0x80:
                        length, position = varint(record, position - 1)
                    position += length
                    label_bytes += length
                pairs.add(crc32(record[begin:position]))
            count += 1
    except IndexError:
        raise ValueError("a series is not complete") from None
    if position != len(record):
        raise ValueError("a series is not complete")
    return Entries(count, label_bytes, labels, pairs)


def count_samples(record: bytes) -> Entries:
    """Count the samples of a record of type SAMPLES. Raises ValueError if it is not complete."""
    position, count, end = _BASE_BYTES, 0, len(record)
    try:
        while position < end:
            while record[position] >= 0x80:
                position += 1
            position += 1
            while record[position] >= 0x80:
                position += 1
            position += 1 + _VALUE_BYTES
            count += 1
    except IndexError:
        raise ValueError("a sample is not complete") from None
    if position != end and end > 1:
        raise ValueError("a sample is not complete")
    return Entries(count)


def count_samples_with_start(record: bytes) -> Entries:
    """Count the samples of a record of type SAMPLES_WITH_START. Raises ValueError if it is not complete."""
    position, count = 1, 0
    try:
        while position < len(record):
            for _ in range(2):
                _, position = varint(record, position)
            if count == 0 or record[position] >= _EXPLICIT_START:
                _, position = varint(record, position + (count > 0))
            else:
                position += 1
            position += _VALUE_BYTES
            count += 1
    except IndexError:
        raise ValueError("a sample is not complete") from None
    if position != len(record):
        raise ValueError("a sample is not complete")
    return Entries(count)
