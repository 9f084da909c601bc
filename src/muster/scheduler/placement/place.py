"""Chooses nodes for the pods of one gang: all of them, or none."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from muster.scheduler.nodes.bucket import Bucket
from muster.scheduler.placement.candidates import (
    Candidate,
    Groups,
    Shortage,
    by_choice,
    candidates,
    preference,
    room_in,
)
from muster.scheduler.placement.closed import OPEN, Closed
from muster.scheduler.placement.ledger import Ledger
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.placement.rules import is_related
from muster.scheduler.placement.with_pod_rules import arrange
from muster.scheduler.pods.pod_class import PodClass

__all__ = ["Candidate", "Groups", "Shortage", "candidates", "choose", "room_when_empty"]

Nearest = Callable[[str], tuple[bool, float]]
"""A sort key of nodes, by name."""
COMPARED = 32
"""Maximum number of nodes with the same room that are compared by `nearest`."""
Failed = Collection[tuple[int, str]]
"""(slot, node) pairs that must not be used."""


def choose(
    ledger: Ledger,
    matcher: Matcher,
    groups: Groups,
    *,
    closed: Closed = OPEN,
    failed: Failed = (),
    taken: Collection[str] = (),
    given_up: Collection[tuple[str, PodClass | None]] = (),
    nearest: Nearest | None = None,
) -> dict[int, str] | Shortage:
    """Return slot -> node for all slots and take that room from the ledger; or return the shortage and take nothing.

    `closed` are nodes that are reserved for others. `taken` are nodes of the gang's other slots, which take no more of
    it. `given_up` are (node, class) pairs that these slots hold until they move; rules about other pods do not count
    them. Classes with the fewest candidates go first. With several classes that compete for the same nodes, this can
    miss a placement that exists. It never returns an invalid one. `nearest` chooses among partly used nodes with the
    same room: those with the lowest value come first.
    """
    banned = {node for slot, node in failed if any(slot in slots for slots in groups.values())} | set(taken)
    if any(is_related(cls, ledger.layer) for cls in groups):
        apart = ledger.fork()
        for node, held in given_up:
            if held is not None:
                apart.layer.count(held, node, -1)
        arranged = arrange(apart, matcher, groups, closed, banned)
        if not isinstance(arranged, Shortage):
            ledger.adopt(apart)
        return arranged
    offers: dict[PodClass, list[Candidate]] = {}
    for cls, slots in groups.items():
        offers[cls] = candidates(ledger, matcher, cls, closed, banned)
        room = room_in(offers[cls])
        if room < len(slots):
            return Shortage(cls, len(slots), room)
    order = by_choice(groups, offers) if len(groups) > 1 else list(groups)
    trial = ledger.fork() if len(order) > 1 else ledger
    chosen: dict[int, str] = {}
    for index, cls in enumerate(order):
        offer = offers[cls] if index == 0 else candidates(trial, matcher, cls, closed, banned)
        slots = sorted(groups[cls])
        room = room_in(offer)
        if room < len(slots):
            return Shortage(cls, len(slots), room)
        filled = _fill(trial, cls, slots, offer, nearest)
        chosen.update(filled)
        if cls.alone and index + 1 < len(order):
            banned |= set(filled.values())
    ledger.adopt(trial)
    return chosen


def room_when_empty(ledger: Ledger, matcher: Matcher, groups: Groups) -> dict[int, str] | Shortage:
    """Return the shortage with the gang alone on these nodes. If it fits: slot -> node, empty without pod rules.

    May take room from the ledger.
    """
    for cls, slots in groups.items():
        room = room_in(candidates(ledger, matcher, cls))
        if room < len(slots):
            return Shortage(cls, len(slots), room)
    if not any(is_related(cls, ledger.layer) for cls in groups):
        return {}
    return arrange(ledger, matcher, groups, OPEN, ())


def _fill(
    ledger: Ledger, cls: PodClass, slots: Sequence[int], offer: Sequence[Candidate], nearest: Nearest | None
) -> dict[int, str]:
    """Assign the slots, in order, to the best candidates; there is room for all of them."""
    chosen: dict[int, str] = {}
    at = 0
    if len(offer) > 1:
        offer = sorted(offer, key=lambda candidate: (*preference(cls, candidate), candidate.bucket.key[1]))
    for candidate in offer:
        full, rest = divmod(len(slots) - at, candidate.times)
        names: Sequence[str] | None = candidate.names
        if nearest is not None and full < COMPARED and _is_used(candidate.bucket):
            names = sorted((names or ledger.first(candidate.bucket, COMPARED))[:COMPARED], key=nearest)
        elif names is None:
            names = ledger.first(candidate.bucket, full + 1)
        whole = names[:full]
        if whole:
            each = [name for name in whole for _ in range(candidate.times)] if candidate.times > 1 else whole
            chosen.update(zip(slots[at : at + len(each)], each, strict=True))
            at += len(each)
            ledger.take(candidate.bucket, whole, cls, candidate.times)
        if rest and len(names) > full:
            chosen.update(dict.fromkeys(slots[at:], names[full]))
            ledger.take(candidate.bucket, [names[full]], cls, rest)
            at = len(slots)
        if at == len(slots):
            break
    return chosen


def _is_used(bucket: Bucket) -> bool:
    """Return whether the nodes of the bucket have pods or reserved slots."""
    return bucket.key != bucket.node_class.whole
