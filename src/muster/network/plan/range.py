"""Ranges of addresses (CIDRs) as numbers: parsing, containment, differences, aggregation."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Final, NamedTuple


class Family(StrEnum):
    """An address family, with Kubernetes' names (`ipFamilies` of a Service)."""

    V4 = "IPv4"
    V6 = "IPv6"

    @property
    def bits(self) -> int:
        """The length of an address."""
        return 32 if self is Family.V4 else 128


_BITS: Final = {family: family.bits for family in Family}


class RangeError(ValueError):
    """The text is not a range. The message says what to write."""


class Range(NamedTuple):
    """One CIDR. Ranges sort by family, then by their first address, and a range comes before those inside it."""

    family: Family
    first: int
    prefix: int

    @property
    def size(self) -> int:
        """The number of addresses."""
        return 1 << (_BITS[self.family] - self.prefix)

    @property
    def end(self) -> int:
        """The address after the last one."""
        return self.first + self.size

    def contains(self, other: Range) -> bool:
        """Return whether each address of `other` is in this range. A range contains itself."""
        return self.family is other.family and self.first <= other.first and other.end <= self.end

    def overlaps(self, other: Range) -> bool:
        """Return whether the ranges share an address. Of two CIDRs that do, one contains the other."""
        return self.family is other.family and self.first < other.end and other.first < self.end

    def parent(self) -> Range:
        """The range of twice the size that contains this one. The whole address space has none."""
        prefix = self.prefix - 1
        return Range(self.family, self.first >> (self.family.bits - prefix) << (self.family.bits - prefix), prefix)

    def buddy(self) -> Range:
        """The other half of the parent."""
        return Range(self.family, self.first ^ self.size, self.prefix)

    def halves(self) -> tuple[Range, Range]:
        """Both halves of this range, the lower one first."""
        lower = Range(self.family, self.first, self.prefix + 1)
        return lower, lower.buddy()

    def __str__(self) -> str:
        """The CIDR as Kubernetes writes it."""
        address = ipaddress.IPv4Address if self.family is Family.V4 else ipaddress.IPv6Address
        return f"{address(self.first)}/{self.prefix}"


ALL: Final = {family: Range(family, 0, 0) for family in Family}
"""The whole space of each family: 0.0.0.0/0 and ::/0."""


def parse_range(text: str) -> Range:
    """Parse a CIDR, or a single address. Raises RangeError, also if bits beyond the prefix are set."""
    try:
        network = ipaddress.ip_network(text)
    except ValueError:
        try:
            masked = ipaddress.ip_network(text, strict=False)
        except ValueError:
            raise RangeError(f"{text!r} is not a range; write one such as 10.0.0.0/8 or fd00::/48") from None
        raise RangeError(f"{text} has bits beyond its prefix; write {masked}") from None
    family = Family.V4 if network.version == 4 else Family.V6
    return Range(family, int(network.network_address), network.prefixlen)


def aggregate(ranges: Iterable[Range]) -> list[Range]:
    """Return the fewest ranges that hold the same addresses, sorted."""
    merged: list[Range] = []
    family, start, end = Family.V4, 0, 0
    for each in sorted(ranges):
        if each.family is not family or each.first > end:
            merged += _cover(family, start, end)
            family, start, end = each.family, each.first, each.end
        else:
            end = max(end, each.end)
    return [*merged, *_cover(family, start, end)]


def subtract(whole: Range, parts: Iterable[Range]) -> list[Range]:
    """Return what is left of `whole` without `parts`, as sorted ranges that are as large as possible.

    `parts` may overlap each other, and may lie outside of `whole`.
    """
    left: list[Range] = []
    start = whole.first
    for part in aggregate(each for each in parts if each.overlaps(whole)):
        left += _cover(whole.family, start, part.first)
        start = part.end
    return [*left, *_cover(whole.family, start, whole.end)]


def _cover(family: Family, start: int, end: int) -> Iterator[Range]:
    """Yield the fewest ranges that hold the addresses from `start` up to `end`, without `end`."""
    while start < end:
        aligned = start & -start or 1 << family.bits
        size = min(aligned, 1 << ((end - start).bit_length() - 1))
        yield Range(family, start, family.bits - size.bit_length() + 1)
        start += size


def overlaps(ranges: Iterable[tuple[Range, str]]) -> Iterator[tuple[tuple[Range, str], tuple[Range, str]]]:
    """Yield the pairs of named ranges that overlap: the larger (or equal) one first. It takes O(n log n + pairs)."""
    open_: list[tuple[Range, str]] = []
    for each in sorted(ranges):
        while open_ and not open_[-1][0].overlaps(each[0]):
            open_.pop()
        for outer in open_:
            yield outer, each
        open_.append(each)
