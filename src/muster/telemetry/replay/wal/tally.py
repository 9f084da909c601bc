"""Counts what a write-ahead log holds, by decoding a sample of its records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from muster.telemetry.replay.wal.compression import decoded, peek
from muster.telemetry.replay.wal.entries import (
    Entries,
    Kind,
    count_samples,
    count_samples_with_start,
    count_series,
)
from muster.telemetry.replay.wal.fragments import Record, crc32c
from muster.telemetry.replay.wal.labelpairs import LabelPairs

_COUNTERS: Final[dict[int, Callable[[bytes], Entries]]] = {
    Kind.SERIES: count_series,
    Kind.SAMPLES: count_samples,
    Kind.SAMPLES_WITH_START: count_samples_with_start,
}
_HISTOGRAMS: Final = (
    Kind.HISTOGRAMS,
    Kind.FLOAT_HISTOGRAMS,
    Kind.CUSTOM_HISTOGRAMS,
    Kind.CUSTOM_FLOAT_HISTOGRAMS,
    Kind.HISTOGRAMS_WITH_START,
    Kind.FLOAT_HISTOGRAMS_WITH_START,
)
_ALWAYS_BYTES: Final = 2 << 20
_CHECKED_BYTES: Final = 1 << 20


class BadRecord(Exception):
    """A record that was decoded is damaged; Prometheus stops there."""


class Counts(msgspec.Struct, frozen=True):
    """What a log holds. Numbers are estimates unless every record was decoded.

    Attributes:
        series: records of series: label sets with an ID. A series that ended and came back has several.
        label_bytes: bytes of their labels.
        labels: number of their labels, the metric's name too.
        label_pairs: different pairs of name and value among these labels. Pairs of two parts of a log count twice.
        samples: samples of floats.
        histogram_bytes: decoded bytes of samples of native histograms.
        other_bytes: decoded bytes of exemplars, metadata and tombstones.
        stored_bytes: bytes of the files.
        decoded_bytes: bytes of the records after decompression.
    """

    series: int = 0
    label_bytes: int = 0
    labels: int = 0
    label_pairs: int = 0
    samples: int = 0
    histogram_bytes: int = 0
    other_bytes: int = 0
    stored_bytes: int = 0
    decoded_bytes: int = 0

    def scaled(self, factor: float) -> Counts:
        """Return these counts for a log that is `factor` times as long."""
        return Counts(**{name: round(getattr(self, name) * factor) for name in self.__struct_fields__})

    def __add__(self, other: Counts) -> Counts:
        return Counts(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


@dataclass(slots=True)
class _Kind:
    """Sums over records of one type; `read` ones are those that were decoded."""

    decoded_bytes: int = 0
    read_bytes: int = 0
    read_count: int = 0
    read_label_bytes: int = 0
    read_labels: int = 0


@dataclass(slots=True)
class Tally:
    """Adds up records. Decodes the first records of each type, and then a `share` of their bytes.

    Attributes:
        share: between 0 and 1.
        kinds: sums of each type.
        checked_bytes: whose checksums were compared.
        pairs: of the labels of series that were decoded.
        records: number of records that were decoded.
    """

    share: float = 1.0
    kinds: dict[int, _Kind] = field(default_factory=dict)
    checked_bytes: int = 0
    pairs: LabelPairs = field(default_factory=LabelPairs)
    records: int = 0

    def add(self, record: Record) -> None:
        """Count a record.

        Raises:
            BadRecord: its checksum is wrong, or its content is not complete.
            Undecodable: see `decoded`.
            MissingExtra: see `decoded`.
        """
        found = peek(record)
        content = None
        if found is None:
            content = decoded(record)
            found = (content[0] if content else 0, len(content))
        number, size = found
        kind = self.kinds.setdefault(number, _Kind())
        count = _COUNTERS.get(number)
        if count is None or kind.read_bytes > _ALWAYS_BYTES + self.share * kind.decoded_bytes:
            kind.decoded_bytes += size
            return
        if self.checked_bytes <= _CHECKED_BYTES:
            _check(record.fragments)
            self.checked_bytes += sum(len(part) for part, _ in record.fragments)
        try:
            entries = count(decoded(record) if content is None else content)
        except ValueError as error:
            raise BadRecord(str(error)) from error
        kind.decoded_bytes += size
        kind.read_bytes += size
        kind.read_count += entries.number
        kind.read_label_bytes += entries.label_bytes
        kind.read_labels += entries.labels
        self.records += 1
        self.pairs.add(entries.pairs, self.records)

    def counts(self, read_bytes: int, all_bytes: int) -> Counts:
        """Return the totals of a log with `all_bytes`, if `read_bytes` of them were read.

        Types whose records were decoded in part are extrapolated by their bytes.
        """
        series, samples = self.kinds.get(Kind.SERIES, _Kind()), self._count(Kind.SAMPLES)
        factor = all_bytes / read_bytes if read_bytes else 1.0
        counts = Counts(
            series=self._count(Kind.SERIES),
            label_bytes=_extrapolated(series.read_label_bytes, series),
            labels=_extrapolated(series.read_labels, series),
            samples=samples + self._count(Kind.SAMPLES_WITH_START),
            histogram_bytes=sum(each.decoded_bytes for kind, each in self.kinds.items() if kind in _HISTOGRAMS),
            other_bytes=sum(
                each.decoded_bytes
                for kind, each in self.kinds.items()
                if kind not in _HISTOGRAMS and kind not in _COUNTERS
            ),
            stored_bytes=read_bytes,
            decoded_bytes=sum(each.decoded_bytes for each in self.kinds.values()),
        ).scaled(factor)
        longer = factor * series.decoded_bytes / series.read_bytes if series.read_bytes else 1.0
        return msgspec.structs.replace(counts, label_pairs=self.pairs.number(longer))

    def _count(self, number: int) -> int:
        kind = self.kinds.get(number, _Kind())
        return _extrapolated(kind.read_count, kind)


def _extrapolated(value: int, kind: _Kind) -> int:
    return round(value * kind.decoded_bytes / kind.read_bytes) if kind.read_bytes else 0


def _check(fragments: Iterable[tuple[bytes, int]]) -> None:
    for part, expected in fragments:
        if crc32c(part) != expected:
            raise BadRecord("a fragment has the wrong checksum")
