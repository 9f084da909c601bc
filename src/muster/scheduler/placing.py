"""Choosing nodes for the pods of one gang: all of them, or none."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from muster.scheduler.ledger import Ledger, fits
from muster.scheduler.matching import Match, Matcher
from muster.scheduler.nodes import Bucket
from muster.scheduler.podclass import PodClass
from muster.scheduler.resources import CORE

Groups = Mapping[PodClass, Sequence[int]]
"""Slots to place, by the class of their pods."""
Failed = Collection[tuple[int, str]]
"""(slot, node) pairs not to be used."""


class Shortage(msgspec.Struct, frozen=True):
    """There is room for `have` of the `need` pods of one class."""

    cls: PodClass
    need: int
    have: int


class Candidate(msgspec.Struct, frozen=True):
    """Nodes with the same room, each of which takes `times` pods. `names`: those that serve, where not all do."""

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
    ledger: Ledger, matcher: Matcher, cls: PodClass, reserved: Collection[int], banned: Collection[str] = ()
) -> list[Candidate]:
    """Return where pods of the class have room, leaving out node classes reserved for others and banned nodes."""
    found = []
    for bucket, left in ledger.buckets():
        if bucket.node_class.number in reserved:
            continue
        times = fits(cls, bucket)
        if not times:
            continue
        match = matcher.match(cls, bucket.node_class)
        if match.reason is not None:
            continue
        if match.names is None and not banned:
            found.append(Candidate(bucket, match, times, left))
            continue
        names = [name for name in ledger.names(bucket) if name not in banned and match.serves(name)]
        if names:
            found.append(Candidate(bucket, match, times, len(names), names))
    return found


def choose(
    ledger: Ledger,
    matcher: Matcher,
    groups: Groups,
    *,
    reserved: Collection[int] = (),
    failed: Failed = (),
    taken: Collection[str] = (),
) -> dict[int, str] | Shortage:
    """Return slot -> node for all slots and take that room from the ledger; or what is short, taking nothing.

    `taken` are nodes of the gang's other slots, which take no more of it. Classes with the least choice go first. With
    several classes that compete for the same nodes this can miss a placement that exists; it never makes a wrong one.
    """
    banned = {node for slot, node in failed if any(slot in slots for slots in groups.values())} | set(taken)
    offers: dict[PodClass, list[Candidate]] = {}
    for cls, slots in groups.items():
        offers[cls] = candidates(ledger, matcher, cls, reserved, banned)
        room = _room(offers[cls])
        if room < len(slots):
            return Shortage(cls, len(slots), room)
    order = sorted(groups, key=lambda cls: (_room(offers[cls]), -sum(cls.request.values()), cls.number))
    trial = ledger.fork() if len(order) > 1 else ledger
    chosen: dict[int, str] = {}
    for index, cls in enumerate(order):
        offer = offers[cls] if index == 0 else candidates(trial, matcher, cls, reserved, banned)
        slots = sorted(groups[cls])
        room = _room(offer)
        if room < len(slots):
            return Shortage(cls, len(slots), room)
        filled = _fill(trial, cls, slots, offer)
        chosen.update(filled)
        if cls.alone and index + 1 < len(order):
            banned |= set(filled.values())
    ledger.adopt(trial)
    return chosen


def _room(offer: Sequence[Candidate]) -> int:
    return sum(candidate.room for candidate in offer)


def _fill(ledger: Ledger, cls: PodClass, slots: Sequence[int], offer: Sequence[Candidate]) -> dict[int, str]:
    """Give the slots, in order, to the best candidates; there is room for all of them."""
    chosen: dict[int, str] = {}
    at = 0
    for candidate in sorted(offer, key=lambda candidate: _preference(cls, candidate)):
        names = candidate.names if candidate.names is not None else ledger.names(candidate.bucket)
        full, rest = divmod(len(slots) - at, candidate.times)
        whole = names[:full]
        for name in whole:
            for slot in slots[at : at + candidate.times]:
                chosen[slot] = name
            at += candidate.times
        if whole:
            ledger.take(candidate.bucket, whole, cls, candidate.times)
        if rest and len(names) > full:
            chosen.update(dict.fromkeys(slots[at:], names[full]))
            ledger.take(candidate.bucket, [names[full]], cls, rest)
            at = len(slots)
        if at == len(slots):
            break
    return chosen


def _preference(cls: PodClass, candidate: Candidate) -> tuple[object, ...]:
    """Wishes first; then nodes without devices the pod does not use; then the least room, to keep nodes whole."""
    bucket = candidate.bucket
    devices = sum(
        value > 0 for resource, value in bucket.free.items() if resource not in CORE and resource not in cls.request
    )
    return (
        candidate.match.unwanted,
        -candidate.match.score,
        devices,
        candidate.times,
        bucket.node_class.number,
        bucket.key[1],
    )
