"""Model of a replay: time and peak memory from series, samples and cores.

Most of a replay runs on one core: decoding records, and creating series in order. Samples are appended by as many
workers as the server has cores. So each kind of work has a serial and a parallel part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from muster.telemetry.replay.wal.tally import Counts

HISTOGRAM_SAMPLE_BYTES: Final = 10.0
"""Decoded bytes of native histograms that cost as much as one float sample; not measured, only a rough figure."""


USEFUL_CORES: Final = 4.0
"""More cores do not help: two of the stages of a replay, decoding and distributing, have one thread each."""
_EXPONENT: Final = 0.25
_REFERENCE_SERIES: Final = 100_000
_LEAST_SERIES, _MOST_SERIES = 1000, 1_000_000
"""The costs of a series and of a sample grow with this power of the number of series. Most of a sample's cost is a
look-up of its series in a map that the processor's caches hold less and less of. A profile of 3.16 shows 0.23 us for a
sample with 60,000 series and 0.52 us with 1,000,000 (a power of 0.29), and 1.7 and 2.8 us for a series (0.19). We take
it that the caches make no difference above a million."""
CHUNK_SAMPLES: Final = 120
OPEN_SAMPLES_MAX: Final = 100
"""Most samples of a series in its open chunk. A chunk is closed and mapped from disk after CHUNK_SAMPLES, and most
series are in the middle of one."""


class ReplaySize(msgspec.Struct, frozen=True):
    """What a server replays.

    Attributes:
        series: label sets that are created.
        samples: samples in the log.
        label_bytes: bytes of names and values of all labels of these series.
        stored_bytes: size of the log on disk; only shown.
        labels: number of all labels of these series, with the names of metrics.
        label_pairs: number of different pairs of name and value among these labels.
    """

    series: int
    samples: int
    label_bytes: int = 0
    stored_bytes: int = 0
    labels: int = 0
    label_pairs: int = 0

    @property
    def open_samples(self) -> int:
        """Samples of open chunks. A replay appends them again."""
        return min(self.samples, self.series * OPEN_SAMPLES_MAX)

    @property
    def mapped_samples(self) -> int:
        """Samples of closed chunks, which are on disk. A replay decodes them, and then skips them."""
        return self.samples - self.open_samples


class Coefficients(msgspec.Struct, frozen=True):
    """Cost of each kind of work on one machine with one version of Prometheus. Times are those of 100,000 series.

    Attributes:
        fixed_s: time of an empty replay.
        series_serial_s: per series, on one core.
        series_parallel_s: per series, divided by the cores.
        label_serial_s: per label, on one core.
        pair_serial_s: per label pair, on one core: the index of the head gets a list for each.
        sample_serial_s: per sample of an open chunk, on one core.
        sample_parallel_s: per sample of an open chunk, divided by the cores.
        mapped_serial_s: per sample of a chunk on disk, on one core.
        mapped_parallel_s: per sample of a chunk on disk, divided by the cores.
        fixed_bytes: memory of a server without series.
        series_bytes: peak memory per series.
        label_bytes: peak memory per label, apart from its bytes.
        label_factor: peak memory per byte of labels.
        pair_bytes: peak memory per label pair, for its list in the index.
        sample_bytes: peak memory per sample that is in memory.
    """

    fixed_s: float
    series_serial_s: float
    series_parallel_s: float
    label_serial_s: float
    pair_serial_s: float
    sample_serial_s: float
    sample_parallel_s: float
    mapped_serial_s: float
    mapped_parallel_s: float
    fixed_bytes: float
    series_bytes: float
    label_bytes: float
    label_factor: float
    pair_bytes: float
    sample_bytes: float


class Prediction(msgspec.Struct, frozen=True):
    """Expected replay.

    Attributes:
        time_s: expected time of the replay (`prometheus_tsdb_data_replay_duration_seconds`).
        peak_memory_bytes: expected peak of the process's resident memory.
        factor: the real figures are expected between these divided by, and multiplied with this factor.
    """

    time_s: float
    peak_memory_bytes: float
    factor: float

    @property
    def longest_s(self) -> float:
        """Upper end of the expected time."""
        return self.time_s * self.factor

    @property
    def most_memory_bytes(self) -> float:
        """Upper end of the expected memory."""
        return self.peak_memory_bytes * self.factor


Trust = Literal["calibrated", "extrapolated", "elsewhere"]
FACTORS: Final[dict[Trust, float]] = {"calibrated": 1.25, "extrapolated": 1.6, "elsewhere": 2.0}
"""How far predictions may be off: after a calibration on the same machine and version, for sizes that it covers and for
others; and without one."""


def size_of(counts: Counts) -> ReplaySize:
    """Return the size of a log that was read."""
    samples = counts.samples + round(counts.histogram_bytes / HISTOGRAM_SAMPLE_BYTES)
    return ReplaySize(
        counts.series, samples, counts.label_bytes, counts.stored_bytes, counts.labels, counts.label_pairs
    )


def predict(size: ReplaySize, cores: float, coefficients: Coefficients, trust: Trust = "elsewhere") -> Prediction:
    """Predict a replay.

    Args:
        size: what is replayed.
        cores: that the server may use: the smaller one of GOMAXPROCS and its CPU limit; may be below 1.
        coefficients: of a calibration, or DEFAULT.
        trust: whether the coefficients are those of the same machine and version, and cover this size.
    """
    time = (
        coefficients.fixed_s,
        coefficients.series_serial_s,
        coefficients.series_parallel_s,
        coefficients.label_serial_s,
        coefficients.pair_serial_s,
        coefficients.sample_serial_s,
        coefficients.sample_parallel_s,
        coefficients.mapped_serial_s,
        coefficients.mapped_parallel_s,
    )
    memory = (
        coefficients.fixed_bytes,
        coefficients.series_bytes,
        coefficients.label_bytes,
        coefficients.label_factor,
        coefficients.pair_bytes,
        coefficients.sample_bytes,
    )
    return Prediction(total(time, time_work(size, cores)), total(memory, memory_work(size)), FACTORS[trust])


def time_work(size: ReplaySize, cores: float) -> tuple[float, ...]:
    """Return how much of each kind of work a replay waits for, in the order of the coefficients of time.

    Each series and sample costs more if there are more series, since fewer of them are in the processor's caches.
    """
    if cores <= 0:
        raise ValueError("a server needs more than 0 cores")
    slower = (min(max(size.series, _LEAST_SERIES), _MOST_SERIES) / _REFERENCE_SERIES) ** _EXPONENT
    series, samples, mapped = size.series * slower, size.open_samples * slower, size.mapped_samples * slower
    alone, together = min(cores, 1.0), min(cores, USEFUL_CORES)
    return (
        1 / alone,
        series / alone,
        series / together,
        size.labels * slower / alone,
        size.label_pairs * slower / alone,
        samples / alone,
        samples / together,
        mapped / alone,
        mapped / together,
    )


def memory_work(size: ReplaySize) -> tuple[float, ...]:
    """Return what takes memory, in the order of the coefficients of memory."""
    return 1.0, size.series, size.labels, size.label_bytes, size.label_pairs, size.open_samples


def total(coefficients: Sequence[float], work: Sequence[float]) -> float:
    """Return what all of the work costs, in the unit of the coefficients."""
    return sum(cost * number for cost, number in zip(coefficients, work, strict=True))
