"""Records of skipped samples, so that a later run skips the same ones on any number of ranks."""

from __future__ import annotations

from typing import Iterable, Iterator, NamedTuple, Sequence

LIMIT = 1000
"""Most records."""
RANGES_LIMIT = 20_000
"""Most ranges of samples in all records."""


class Skipped(NamedTuple):
    """Samples of one shard that were skipped in one epoch. In the next epoch they are read again.

    Attributes:
        epoch: from 0.
        shard: key of the shard.
        samples: their numbers in the shard, as text such as "0-11,15".
        reason: the first error, for people.
    """

    epoch: int
    shard: str
    samples: str
    reason: str = ""


class SkippedSamples:
    """A set of skipped samples.

    Args:
        records: of earlier runs and of all ranks. Raises ValueError if one cannot be read.
    """

    def __init__(self, records: Iterable[Sequence[object]] = ()) -> None:
        self._samples: dict[tuple[int, str], set[int]] = {}
        self._reasons: dict[tuple[int, str], str] = {}
        for row in records:
            self.merge(row)

    def __bool__(self) -> bool:
        return bool(self._samples)

    def has(self, epoch: int, shard: str, sample: int) -> bool:
        """Return whether this sample is skipped in this epoch."""
        samples = self._samples.get((epoch, shard))
        return samples is not None and sample in samples

    def merge(self, row: Sequence[object]) -> None:
        """Add the samples of a record. Raises ValueError if it cannot be read."""
        try:
            epoch, shard, samples, reason = [*row, ""][:4]
            numbers = list(_numbers(str(samples)))
            key = (int(str(epoch)), str(shard))
        except (TypeError, ValueError):
            raise ValueError(f"this is not a record of skipped samples: {row!r}") from None
        self._samples.setdefault(key, set()).update(numbers)
        self._reasons.setdefault(key, str(reason))

    def add(self, epoch: int, shard: str, sample: int, reason: str) -> None:
        """Add a sample."""
        self._samples.setdefault((epoch, shard), set()).add(sample)
        self._reasons.setdefault((epoch, shard), reason)

    def full(self) -> bool:
        """Return whether the records are too many to be stored with a checkpoint."""
        if len(self._samples) >= LIMIT:
            return True
        # half of the samples are an upper bound of the number of ranges
        if sum(len(samples) for samples in self._samples.values()) < RANGES_LIMIT:
            return False
        return sum(len(record.samples.split(",")) for record in self.records()) >= RANGES_LIMIT

    def records(self) -> list[Skipped]:
        """The records, in order."""
        return [
            Skipped(epoch, shard, _text(samples), self._reasons[epoch, shard])
            for (epoch, shard), samples in sorted(self._samples.items())
        ]


def _numbers(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, dash, last = part.partition("-")
        yield from range(int(first), int(last if dash else first) + 1)


def _text(samples: set[int]) -> str:
    ranges: list[list[int]] = []
    for sample in sorted(samples):
        if ranges and ranges[-1][1] == sample - 1:
            ranges[-1][1] = sample
        else:
            ranges.append([sample, sample])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
