"""Splits a count among those who caused it, without losing or adding a byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from muster.network.traffic.backend import Count


class Owner(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Who is charged.

    Attributes:
        namespace, job, team: as in `Row`.
        pod: name of the pod, if the owner of a counter is one.
    """

    namespace: str
    job: str
    team: str
    pod: str = ""

    @property
    def account(self) -> Owner:
        """The same without the pod."""
        return Owner(self.namespace, self.job, self.team)


class Share(NamedTuple):
    """A part of a counter's increase, in proportion to the weights of all its shares."""

    owner: Owner
    weight: int


Shares = Mapping[str, Sequence[Share]]
"""By subject. A subject that is not in it is charged to its one owner."""


def split(count: Count, shares: Sequence[Share]) -> list[tuple[Owner, Count]]:
    """Split a count by weights. The parts are whole, and their sum is the count.

    Weights that are all 0 count as equal ones. There is at least one share.
    """
    weights = [max(0, each.weight) for each in shares]
    if not any(weights):
        weights = [1] * len(shares)
    packets, sizes = _parts(count.packets, weights), _parts(count.bytes, weights)
    return [
        (share.owner, Count(packets=part, bytes=size)) for share, part, size in zip(shares, packets, sizes, strict=True)
    ]


def _parts(whole: int, weights: Sequence[int]) -> list[int]:
    """Cut at the rounded running sums, so that rounding never adds up."""
    total, before, seen = sum(weights), 0, 0
    parts = []
    for weight in weights:
        seen += weight
        upto = whole * seen // total
        parts.append(upto - before)
        before = upto
    return parts
