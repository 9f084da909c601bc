"""Free space of one address family: gives out ranges by best fit, so that large free blocks stay whole."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from muster.network.plan.range import Family, Range, aggregate, subtract


class Space:
    """The free parts of some ranges of one family. All operations are deterministic.

    Free ranges are as large as possible, and sorted by size and address. So the smallest one that fits is found
    without a search through all.

    Args:
        family: the family.
        whole: ranges that may be used.
        taken: ranges that may not, also in part.
    """

    def __init__(self, family: Family, whole: Iterable[Range], taken: Iterable[Range]) -> None:
        self._family = family
        self._free: list[list[int]] = [[] for _ in range(family.bits + 1)]
        taken = list(taken)
        for each in aggregate(whole):
            for part in subtract(each, taken):
                self._free[part.prefix].append(part.first)

    @property
    def addresses(self) -> int:
        """The number of free addresses."""
        return sum(len(firsts) << (self._family.bits - prefix) for prefix, firsts in enumerate(self._free))

    @property
    def largest(self) -> Range | None:
        """The largest free range; of equal ones, the lowest."""
        return next((self._range(prefix, firsts[0]) for prefix, firsts in enumerate(self._free) if firsts), None)

    def is_free(self, wanted: Range) -> bool:
        """Return whether every address of the range is free."""
        return self._around(wanted) is not None

    def take(self, wanted: Range) -> None:
        """Remove a range, wherever it overlaps free space."""
        around = self._around(wanted)
        if around is not None:
            self._remove(around)
            for part in subtract(around, [wanted]):
                insort(self._free[part.prefix], part.first)
            return
        for firsts in self._free[wanted.prefix + 1 :]:
            del firsts[bisect_left(firsts, wanted.first) : bisect_left(firsts, wanted.end)]

    def give(self, prefix: int) -> Range | None:
        """Take a range of this prefix length out of the smallest free block that holds it. None: there is none."""
        for length in range(prefix, -1, -1):
            if self._free[length]:
                given = self._range(prefix, self._free[length][0])
                self.take(given)
                return given
        return None

    def _around(self, wanted: Range) -> Range | None:
        """Return the free range that contains this one."""
        if wanted.family is not self._family:
            return None
        for prefix in range(wanted.prefix, -1, -1):
            shift = self._family.bits - prefix
            first = wanted.first >> shift << shift
            firsts = self._free[prefix]
            at = bisect_left(firsts, first)
            if at < len(firsts) and firsts[at] == first:
                return self._range(prefix, first)
        return None

    def _remove(self, whole: Range) -> None:
        firsts = self._free[whole.prefix]
        del firsts[bisect_left(firsts, whole.first)]

    def _range(self, prefix: int, first: int) -> Range:
        return Range(self._family, first, prefix)
