"""Candidate nodes of a pod class, and their order of preference."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from muster.scheduler.nodes.bucket import Bucket
from muster.scheduler.placement.closed import OPEN, Closed
from muster.scheduler.placement.ledger import Ledger, fits
from muster.scheduler.placement.matching import Match, Matcher
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.resources import CORE

Groups = Mapping[PodClass, Sequence[int]]
"""Slots to place, by the class of their pods."""


class Shortage(msgspec.Struct, frozen=True):
    """Of `need` pods of one class, only `have` fit. If `gave_up` is true, the search ended early and more may fit."""

    cls: PodClass
    need: int
    have: int
    gave_up: bool = False


class Candidate(msgspec.Struct, frozen=True):
    """Nodes with the same room, each for `times` pods. `names`: the accepted nodes, or None if all are accepted."""

    bucket: Bucket
    match: Match
    times: int
    count: int
    names: list[str] | None = None

    @property
    def room(self) -> int:
        """How many pods these nodes take."""
        return self.times * self.count


def candidates(
    ledger: Ledger, matcher: Matcher, cls: PodClass, closed: Closed = OPEN, banned: Collection[str] = ()
) -> list[Candidate]:
    """Return where pods of the class have room, without closed and banned nodes.

    Rules about other pods are not applied here (see `with_pod_rules`), so this is an upper bound.
    """
    found = []
    if closed.nodes:
        banned = closed.nodes.union(banned)
    for bucket, left in ledger.buckets():
        times = fits(cls, bucket)
        if not times or (closed and closed.closes(bucket)):
            continue
        match = matcher.match(cls, bucket.node_class)
        if match.reason is not None:
            continue
        if match.names is None and bucket.names.keys().isdisjoint(banned):
            found.append(Candidate(bucket, match, times, left))
            continue
        names = [name for name in ledger.names(bucket) if name not in banned and match.serves(name)]
        if names:
            found.append(Candidate(bucket, match, times, len(names), names))
    return found


def room_in(offer: Sequence[Candidate]) -> int:
    """Return how many pods these candidates take."""
    return sum(candidate.room for candidate in offer)


def by_choice(groups: Groups, offers: Mapping[PodClass, Sequence[Candidate]]) -> list[PodClass]:
    """Return the classes in placement order: those with the fewest candidates first."""
    return sorted(groups, key=lambda cls: (room_in(offers[cls]), -sum(cls.request.values()), cls.number))


def preference(cls: PodClass, candidate: Candidate) -> tuple[int, ...]:
    """Return a sort key: preferences, then nodes without unused devices, then least room, to keep nodes whole."""
    bucket = candidate.bucket
    devices = sum(
        value > 0 for resource, value in bucket.free.items() if resource not in CORE and resource not in cls.request
    )
    return (candidate.match.unwanted, -candidate.match.score, devices, candidate.times, bucket.node_class.number)
