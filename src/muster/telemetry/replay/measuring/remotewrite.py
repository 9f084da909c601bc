"""Encodes samples of synthetic series as remote write requests (version 1, "Prometheus Remote-Write Specification")."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, Literal
from zlib import crc32

from muster.telemetry.replay.wal.compression import MissingExtra
from muster.telemetry.replay.wal.labelpairs import LabelPairs

HEADERS: Final = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_BATCH: Final = 5000
"""Series of a request, which becomes a record of samples: scrapes are as large. Samples wait in queues of 300 batches
for each core, a batch with at most 5,000 of one record (tsdb/head_wal.go). Small records would hide their memory."""
_METRICS: Final = 500
_COUNTER_STEPS: Final = 37
_SHORT_LABELS: Final = 8
_SHARING: Final = 4
_PAIRS_KEPT: Final = 2048
"""Encoded pairs that are kept: a series shares most of its pairs with its neighbours."""

Labels = Literal["usual", "long", "many", "own"]
"""Labels of each series: 8 with 165 bytes, 4 with 240 bytes, or 16 with 215 bytes. One series of four has a label value
of its own; with `own` each has, and 8 labels."""


class SyntheticSeries:
    """Counters as exporters of nodes have them: 500 for each pod, and each grows with each sample.

    Values that stay the same compress to almost nothing, so a log of them would be read faster than real ones.

    Args:
        number: of series.
        labels: how many labels each has. Their cost differs between versions, so a calibration needs several.

    Attributes:
        label_bytes: bytes of names and values of all their labels.
        labels: number of all their labels.
        label_pairs: different pairs of name and value among their labels.
    """

    def __init__(self, number: int, labels: Labels = "usual") -> None:
        """Encode the labels."""
        self.label_bytes = self.labels = 0
        pairs = LabelPairs()
        self._labels = [self._encode(_labels_of(index, labels), pairs) for index in range(number)]
        self.label_pairs = pairs.number(1.0)
        self._values = [float(index % 1000) for index in range(number)]

    def requests(self, step: int, at_ms: int) -> Iterator[bytes]:
        """Yield the bodies of requests with one sample for each series, as a scrape gives them.

        Raises:
            MissingExtra: the library for compression is not installed.
        """
        try:
            import cramjam
        except ImportError as error:
            raise MissingExtra("remote write needs a library: pip install 'muster[telemetry]'") from error
        tail = b"\x10" + _varint(at_ms)
        head = b"\x12" + _varint(9 + len(tail)) + b"\x09"
        values = self._values
        for begin in range(0, len(values), _BATCH):
            parts = []
            for index in range(begin, min(begin + _BATCH, len(values))):
                values[index] += 1 + index * step % _COUNTER_STEPS
                series = self._labels[index] + head + struct.pack("<d", values[index]) + tail
                parts.append(_field(1, series))
            yield bytes(cramjam.snappy.compress_raw(b"".join(parts)))

    def _encode(self, labels: Sequence[tuple[str, str]], pairs: LabelPairs) -> bytes:
        self.labels += len(labels)
        self.label_bytes += sum(len(name) + len(value) for name, value in labels)
        encoded = [_label(name, value) for name, value in labels]
        pairs.add(map(crc32, encoded), 1)
        return b"".join(encoded)


def _labels_of(index: int, labels: Labels) -> Sequence[tuple[str, str]]:
    """Return the labels of a series, sorted by name."""
    pod = index // _METRICS
    unique = f"{pod * 2654435761 % 2**32:08x}"
    name = ("__name__", f"synthetic_{index % _METRICS:04d}_seconds_total")
    instance = ("instance", f"10.{pod >> 16 & 255}.{pod >> 8 & 255}.{pod & 255}:9400")
    alone = labels == "own" or index % _SHARING == 0
    mode = ("mode", f"mode-{index:08d}" if alone else "mode-of-the-device")
    if labels == "long":
        path = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{unique}{unique}{unique}.slice/"
        return [name, ("id", path + f"cri-containerd-{unique[::-1] * 4}.scope"), instance, mode]
    usual = [
        name,
        ("container", "exporter"),
        instance,
        ("job", "node-exporter"),
        mode,
        ("namespace", "team-a"),
        ("node", f"node-{pod:05d}.example"),
        ("pod", f"exporter-{pod:05d}-{unique}"),
    ]
    if labels == "many":
        usual += [(f"z{each}", f"{unique[:3]}{each}") for each in range(_SHORT_LABELS)]
    return usual


@lru_cache(_PAIRS_KEPT)
def _label(name: str, value: str) -> bytes:
    return _field(1, _field(1, name.encode()) + _field(2, value.encode()))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
