"""Finds restartable gangs on partly used nodes that can move to other nodes, so that a waiting gang fits.

The moved gangs save a checkpoint, leave, and start again in the room that other partly used nodes have. This happens
only if all of them fit there, and if it costs fewer GPU-seconds than the wait of the gang.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import nlargest
from math import inf

import msgspec

from muster.api.names import LABEL_POOL
from muster.scheduler.draft import Draft, room_for
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.gangs.placements import is_leaving
from muster.scheduler.nodes.bucket import Bucket
from muster.scheduler.nodes.node_record import NodeRecord
from muster.scheduler.placement.closed import Closed
from muster.scheduler.placement.ledger import Ledger, fits
from muster.scheduler.placement.place import Groups, Shortage, choose
from muster.scheduler.placement.rules import is_related
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.resources import CORE, times_fits
from muster.scheduler.preemption.victims import devices_of, may_leave, work_lost
from muster.scheduler.queue.backfill import began_at, occupants

MOVED_AFTER_S = 600.0
"""A gang is moved only after it has run this long at its place."""
_LOOK = 128
"""Maximum number of partly used nodes that one plan looks at, those with the most free devices first."""


class _Part(msgspec.Struct, frozen=True):
    """A partly used node.

    Attributes:
        node: its name.
        gangs: the gangs on it.
        cost: GPU-seconds that these lose if they move.
        gain: how many pods of the waiting gang fit then.
    """

    node: str
    gangs: tuple[Gang, ...]
    cost: float
    gain: int


def movers(draft: Draft, gang: Gang, groups: Groups) -> Sequence[Gang]:
    """Return the gangs that move, so that all slots of `gang` fit; none if that is impossible or costs too much."""
    wait_s = draft.kept.start_of(gang) - draft.now
    if len(groups) != 1 or not 0.0 < wait_s < inf:
        return ()
    ((cls, slots),) = groups.items()
    layer = draft.ledger.layer
    if is_related(cls, layer) or any(_is_moving(other) for other in draft.snapshot.attention.values()):
        return ()
    closed = draft.kept.kept_from(gang)
    missing = len(slots) - room_for(draft, [cls], closed, gang.nodes_beside(slots))[cls]
    budget = wait_s * devices_of(cls) * len(slots)
    found: list[Gang] = []
    for part in sorted(_parts(draft, gang, cls, closed), key=lambda part: (part.cost / part.gain, part.node)):
        if missing <= 0 or part.cost >= budget:
            break
        budget -= part.cost
        missing -= part.gain
        found += part.gangs
    if missing > 0 or not _all_fit(draft, gang, groups, closed, found):
        return ()
    return found


def _is_moving(gang: Gang) -> bool:
    return is_leaving(gang) and gang.placement is not None and gang.placement.status.reason == "Moved"


def _parts(draft: Draft, gang: Gang, cls: PodClass, closed: Closed) -> Iterator[_Part]:
    """Yield partly used nodes that the class could use if their gangs moved."""
    matcher, snapshot = draft.recalled.matcher, draft.snapshot
    policy_of = draft.settings.policy_of
    buckets = [
        bucket
        for bucket in snapshot.buckets.values()
        if _free_devices(cls, bucket)
        and not fits(cls, bucket)
        and not closed.closes(bucket)
        and policy_of(bucket.node_class.labels.get(LABEL_POOL, "")) == "preemptible"
        and matcher.match(cls, bucket.node_class).reason is None
    ]
    looked = 0
    for bucket in nlargest(len(buckets), buckets, key=lambda bucket: (_free_devices(cls, bucket), bucket.key[1])):
        for name in draft.ledger.first(bucket, _LOOK - looked):
            looked += 1
            part = _part(draft, gang, cls, snapshot.nodes[name])
            if part is not None:
                yield part
        if looked >= _LOOK:
            return


def _part(draft: Draft, waiting: Gang, cls: PodClass, node: NodeRecord) -> _Part | None:
    """Return what it takes to empty the node; None if a gang on it cannot move, or if that would not help."""
    if node.fully_held or node.foreign_used:
        return None
    gangs = tuple(draft.snapshot.gangs[key] for key in sorted(occupants(draft.snapshot, node)))
    if not gangs or not all(_may_move(draft, waiting, other) for other in gangs):
        return None
    gain = min(times_fits(cls.request, node.free_when_empty()), 1 if cls.alone or cls.ports else 1 << 30)
    if not gain:
        return None
    return _Part(node.name, gangs, sum(work_lost(other, draft.now) for other in gangs), gain)


def _may_move(draft: Draft, waiting: Gang, gang: Gang) -> bool:
    if gang.priority > waiting.priority or gang.traits.rank > waiting.traits.rank:
        return False
    if gang.job is None or not gang.restartable or gang.writing or gang.binding or gang.wanted != 1:
        return False
    if gang.key in draft.leaving or gang.key in draft.written or is_leaving(gang):
        return False
    if gang.times_asked >= draft.settings.backfill_asks_max or not may_leave(gang, draft.settings.bind_deadline_s):
        return False
    return draft.now - began_at(gang) >= MOVED_AFTER_S


def _all_fit(draft: Draft, gang: Gang, groups: Groups, closed: Closed, moved: Sequence[Gang]) -> bool:
    """Return whether the gang fits without the moved gangs, and these fit on other nodes then."""
    ledger = draft.ledger.fork()
    _give_back(draft, ledger, moved)
    matcher = draft.recalled.matcher
    slots = {slot for members in groups.values() for slot in members}
    taken = gang.nodes_beside(slots)
    nodes = choose(ledger, matcher, groups, closed=closed, failed=gang.failed_nodes, taken=taken)
    if isinstance(nodes, Shortage):
        return False
    used = set(nodes.values())
    for other in sorted(moved, key=lambda other: other.order):
        again: Groups = {cls: [slot] for slot, cls in other.slot_class.items()}
        if isinstance(choose(ledger, matcher, again, closed=closed, failed=other.failed_nodes, taken=used), Shortage):
            return False
    return True


def _give_back(draft: Draft, ledger: Ledger, gangs: Sequence[Gang]) -> None:
    for gang in gangs:
        for name, cls in gang.takes():
            bucket = ledger.room(draft.snapshot.nodes[name])
            if bucket is not None:
                ledger.give(bucket, [name], cls)


def _free_devices(cls: PodClass, bucket: Bucket) -> int:
    return sum(bucket.free.get(resource, 0) for resource in cls.request if resource not in CORE)
