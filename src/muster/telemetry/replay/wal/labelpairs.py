"""Estimates how many different label pairs (a name with a value) the series of a log have, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

_KEPT_MAX: Final = 200_000
"""Most checksums that are kept. The error of the estimate is then about 0.3%."""
_SEVERAL: Final = -1


@dataclass(slots=True)
class LabelPairs:
    """Counts different checksums of pairs.

    It keeps those whose lowest `depth` bits are zero, and drops half of them when they become too many (Flajolet, "On
    adaptive sampling", Computing 43, 1990).

    Attributes:
        depth: one of 2 ** depth checksums is kept.
        kept: for each checksum the number of the only record that has it, or _SEVERAL.
    """

    depth: int = 0
    kept: dict[int, int] = field(default_factory=dict)

    def add(self, checksums: Iterable[int], record: int) -> None:
        """Add the checksums of a record; `record` is its number."""
        mask, kept = (1 << self.depth) - 1, self.kept
        for each in checksums:
            if not each & mask and kept.setdefault(each, record) != record:
                kept[each] = _SEVERAL
        while len(self.kept) > _KEPT_MAX:
            self.depth += 1
            mask = (1 << self.depth) - 1
            self.kept = {each: where for each, where in self.kept.items() if not each & mask}

    def number(self, longer: float) -> int:
        """Return the estimated number of pairs in a log that is `longer` times as long as its records that were added.

        A pair of one record only, such as the name of a pod, stands for others in records that were not added. A pair
        of several records, such as the name of a metric, is in most of the others too, and counts once.
        """
        several = sum(1 for where in self.kept.values() if where == _SEVERAL)
        return round((several + (len(self.kept) - several) * longer) * (1 << self.depth))
