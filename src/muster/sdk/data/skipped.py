"""Records of skipped samples, so that a later run skips exactly the same ones on any number of ranks."""

from __future__ import annotations

from typing import Iterable, NamedTuple, Sequence

LIMIT = 1000


class Skipped(NamedTuple):
    """From a position on, samples of a shard are skipped in one epoch and in one range of each batch.

    The range is the part of the batch that the rank received which found the shard broken. Another rank that finds it
    broken has its own record. So the records say for each position whether its sample was skipped.

    Attributes:
        epoch: from 0. In the next epoch the shard is read again.
        shard: key of the shard.
        position: first position that is skipped.
        first: start of the range in each batch.
        end: end of the range in each batch.
        reason: the error, for people.
    """

    epoch: int
    shard: str
    position: int
    first: int
    end: int
    reason: str = ""


class SkippedShards:
    """Finds out whether a position is skipped."""

    def __init__(self, batch: int, records: Iterable[Sequence[object]] = ()) -> None:
        self._batch = batch
        self._records: dict[tuple[int, str], list[Skipped]] = {}
        self._count = 0
        for row in records:
            self.add(_record(row))

    def __bool__(self) -> bool:
        return bool(self._records)

    @property
    def full(self) -> bool:
        """Whether the limit is reached."""
        return self._count >= LIMIT

    def add(self, record: Skipped) -> None:
        """Add a record, if it is new."""
        known = self._records.setdefault((record.epoch, record.shard), [])
        if all(record[:5] != each[:5] for each in known):
            known.append(record)
            self._count += 1

    def covers(self, epoch: int, shard: str, position: int) -> bool:
        """Whether the sample of this shard is skipped at this position."""
        known = self._records.get((epoch, shard))
        if not known:
            return False
        inside = position % self._batch
        return any(each.position <= position and each.first <= inside < each.end for each in known)

    def until(self, position: int) -> list[Skipped]:
        """The records that concern positions before this one."""
        return sorted(each for known in self._records.values() for each in known if each.position < position)


def _record(row: Sequence[object]) -> Skipped:
    try:
        epoch, shard, position, first, end, *reason = row
        numbers = [int(str(number)) for number in (epoch, position, first, end)]
        return Skipped(numbers[0], str(shard), numbers[1], numbers[2], numbers[3], str(reason[0]) if reason else "")
    except (TypeError, ValueError):
        raise ValueError(f"this is not a record of skipped samples: {row!r}") from None
