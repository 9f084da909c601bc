"""Finds victims for a gang that does not fit. Preempts nothing unless the gang then fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain

import msgspec

from muster.kube.objects.resources import plus
from muster.scheduler.draft import Draft, room_for, wake
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.gangs.placements import is_leaving
from muster.scheduler.gangs.priority import Rank
from muster.scheduler.nodes.bucket import Bucket
from muster.scheduler.placement.closed import OPEN, Closed
from muster.scheduler.placement.ledger import Ledger, fits
from muster.scheduler.placement.place import Groups, Shortage, choose
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.preemption.choice import Level, Victim, cheapest
from muster.scheduler.preemption.eviction import Spending, may_go
from muster.scheduler.preemption.searches import failed_search
from muster.scheduler.preemption.victims import is_overdue, work_lost
from muster.scheduler.queue.lending import debtors, is_lent, outranks
from muster.scheduler.queue.overtaking import has_overtaken, overtakers

_STUCK_RANK = -1.0
"""Gangs that do not run are preempted before all others, the last in order first."""
_BACKFILLED_RANK = Rank.BALLOON + 0.5
"""Backfilled gangs leave after balloons, which have no work to lose: first restartable ones, and of these those that
were asked to leave least often."""
_WOULD_LOSE = 1e6
"""Added to the level of backfilled gangs that would lose their work."""
CHOICE = 256
"""If there are more candidates, those that lose least are tried first, if they free several times the room needed."""
PLENTY = 3


class MadeRoom(msgspec.Struct, frozen=True):
    """The victims, and the gang's nodes once they are gone: slot -> node."""

    victims: tuple[Gang, ...]
    nodes: dict[int, str]


def make_room(
    draft: Draft,
    gang: Gang,
    groups: Groups,
    *,
    closed: Closed = OPEN,
    stuck: Sequence[Gang] = (),
    spared: Collection[str] = (),
) -> MadeRoom | None:
    """Return the victims whose leaving lets all the slots fit; None if all candidates together are not enough.

    `closed` are nodes reserved for others. `stuck` are later gangs that lost nodes and wait as this one does.
    `spared` are keys of gangs that stay.
    """
    slots = {slot for members in groups.values() for slot in members}
    beside = gang.nodes_beside(slots) | {node for slot, node in gang.failed_nodes if slot in slots}
    missing = {cls: len(members) - room_for(draft, [cls], closed, beside)[cls] for cls, members in groups.items()}
    known = draft.snapshot.searches.get(gang.key) if not stuck else None
    if known is not None and known.covers(missing, draft.now):
        wake(draft, known.until)
        return None
    first = {other.key for other in stuck} | set(spared)
    lower = [other for other in _may_leave(draft, gang) if other.key not in first]
    made = _of_those(draft, gang, groups, missing, stuck, lower, closed)
    draft.searches[gang.key] = None
    if made is None:
        looked_at = len(draft.snapshot.borrowing) + sum(
            len(movable) for priority, movable in draft.snapshot.movable.items() if priority < gang.priority
        )
        if looked_at > CHOICE:
            failed = draft.searches[gang.key] = failed_search(missing, draft.now, looked_at)
            wake(draft, failed.until)
    return made


def _of_those(
    draft: Draft,
    gang: Gang,
    groups: Groups,
    missing: Mapping[PodClass, int],
    stuck: Sequence[Gang],
    lower: Sequence[Gang],
    closed: Closed,
) -> MadeRoom | None:
    gains = draft.recalled.gains
    for cls, count in missing.items():  # the common case is too few candidates: do not visit each node for it
        if sum(gains.serving(other, cls) for other in (*stuck, *lower)) < count:
            return None
    few = _that_lose_least(draft, gang, lower, missing)
    made = _choose(draft, gang, groups, missing, [*stuck, *few], len(stuck), closed)
    if made is None and len(few) < len(lower):
        made = _choose(draft, gang, groups, missing, [*stuck, *lower], len(stuck), closed)
    return made


def _level(gang: Gang, other: Gang) -> Level:
    """Return a sort key: gangs with lower values leave first."""
    if has_overtaken(gang, other):
        return (_BACKFILLED_RANK, other.times_asked + (0.0 if other.restartable else _WOULD_LOSE))
    return (float(other.traits.rank), float(other.priority))


def _that_lose_least(
    draft: Draft, gang: Gang, gangs: Sequence[Gang], missing: Mapping[PodClass, int]
) -> Sequence[Gang]:
    """Return the first in preemption order, with several times the room needed; all if there are few."""
    if len(gangs) <= CHOICE:
        return gangs

    def order(other: Gang) -> tuple[Level, float, str]:
        return (_level(gang, other), work_lost(other, draft.now) / max(1, other.wanted), other.key)

    left = {cls: PLENTY * count for cls, count in missing.items()}
    found: list[Gang] = []
    for other in sorted(gangs, key=order):
        if len(found) >= CHOICE and all(count <= 0 for count in left.values()):
            break
        found.append(other)
        for cls in left:
            left[cls] -= draft.recalled.gains.serving(other, cls)
    return found


def _choose(
    draft: Draft,
    gang: Gang,
    groups: Groups,
    missing: Mapping[PodClass, int],
    may: Sequence[Gang],
    stuck: int,
    closed: Closed,
) -> MadeRoom | None:
    """Choose victims among the candidates. The first `stuck` candidates do not run."""
    slots = {slot for members in groups.values() for slot in members}
    beside = gang.nodes_beside(slots) | {node for slot, node in gang.failed_nodes if slot in slots}
    room = _Room(draft, gang, may, stuck, closed, beside)
    for cls, count in missing.items():
        if not room.prepare(cls, count):
            return None
    last = stuck - 1
    victims = [
        Victim(
            other.key,
            (_STUCK_RANK, float(last - at)) if at <= last else _level(gang, other),
            work_lost(other, draft.now),
            other.wanted,
        )
        for at, other in enumerate(may)
    ]
    spending = Spending(draft.snapshot, draft.recalled.budget_needs, may, draft.leaving)
    chosen = {victim.key for victim in cheapest(victims, room.fits, clash=spending.clash)}
    if not chosen:
        return None
    leaving = tuple(other for other in may if other.key in chosen)
    nodes = choose(
        room.without(leaving),
        draft.recalled.matcher,
        groups,
        closed=closed,
        failed=gang.failed_nodes,
        taken=gang.nodes_beside(slots),
        given_up=[held for slot, held in gang.holds.items() if slot in slots],
    )
    return None if isinstance(nodes, Shortage) else MadeRoom(leaving, nodes)


def _may_leave(draft: Draft, gang: Gang) -> Iterator[Gang]:
    """Yield the candidates: backfilled gangs, gangs of lower priority, and borrowers of the team's nodes."""
    for other in chain(overtakers(draft.snapshot, gang), _outranked(draft, gang)):
        if other.writing or other.binding or other.key in draft.leaving or other.key in draft.written:
            continue  # this plan writes its placement: it is about to be bound
        if is_leaving(other):
            if not is_overdue(other, draft.now, draft.settings):
                yield other
        elif may_go(draft.recalled.budget_needs, other, draft.now):
            yield other


def _outranked(draft: Draft, gang: Gang) -> Iterator[Gang]:
    if not gang.traits.preempts:
        return iter(())
    movable = draft.snapshot.movable.items()
    lower = (other for priority, gangs in movable if priority < gang.priority for other in gangs.values())
    if gang.traits.rank is not Rank.OTHER:
        lower = (other for other in lower if outranks(gang, other))
    return chain(lower, debtors(draft.snapshot, gang))


class _Room:
    """Computes how many slots of `gang` fit for a set of victims. The first `stuck` candidates do not run."""

    def __init__(
        self,
        draft: Draft,
        gang: Gang,
        may: Sequence[Gang],
        stuck: int,
        closed: Closed,
        beside: Collection[str],
    ) -> None:
        self._draft = draft
        # A candidate that leaves only because it borrows frees the borrowed nodes only.
        self._only_lent = {
            other.key for other in may[stuck:] if not (outranks(gang, other) or has_overtaken(gang, other))
        }
        self._for = gang
        self._closed = closed
        self._beside = beside
        self._on: dict[str, list[tuple[int, PodClass]]] = {}
        self._wanted: list[tuple[int, Counter[int], Counter[frozenset[int]]]] = []
        for at, other in enumerate(may):
            for node, cls in self._given_by(other):
                self._on.setdefault(node, []).append((at, cls))
        self._levels = [_level(gang, other) for other in may]

    def _given_by(self, other: Gang) -> Iterator[tuple[str, PodClass]]:
        """Yield (node, class) of each pod and reserved slot that `other` frees for `gang`."""
        for node, cls in other.takes():
            if other.key not in self._only_lent or is_lent(self._draft.snapshot, self._for, other, node):
                yield node, cls

    def prepare(self, cls: PodClass, need: int) -> bool:
        """Find the candidates that free room for `need` more pods; return whether all together are enough."""
        alone: Counter[int] = Counter()
        shared: Counter[frozenset[int]] = Counter()
        for name in self._on:
            leaving, gain = self._on_node(name, cls)
            if len(leaving) == 1:
                alone[next(iter(leaving))] += gain
            elif gain:
                shared[leaving] += gain
        self._wanted.append((need, alone, shared))
        return alone.total() + shared.total() >= need

    def _on_node(self, name: str, cls: PodClass) -> tuple[frozenset[int], int]:
        """Return the victims needed for the most pods of the class on the node, and how many more pods that gives."""
        snapshot, nothing = self._draft.snapshot, (frozenset[int](), 0)
        node = snapshot.nodes[name]
        if node.node_class is None or name in self._beside or node.fully_held or name in self._closed.nodes:
            return nothing
        bucket = self._draft.ledger.room(node)
        if bucket is None or self._closed.closes(bucket):
            return nothing
        if not self._draft.recalled.matcher.match(cls, node.node_class).serves(name):
            return nothing
        before = fits(cls, bucket)
        leaving = {at for at, _ in self._on[name]}
        most = fits(cls, self._with(bucket, name, leaving))
        if most <= before:
            return nothing
        for at in sorted(leaving, key=lambda at: self._levels[at], reverse=True):
            if fits(cls, self._with(bucket, name, leaving - {at})) == most:
                leaving.discard(at)
        return frozenset(leaving), most - before

    def _with(self, bucket: Bucket, name: str, leaving: Collection[int]) -> Bucket:
        free, ports = bucket.free, bucket.ports
        for at, cls in self._on[name]:
            if at in leaving:
                free = plus(free, cls.request)
                ports = ports - frozenset(cls.ports)
        return Bucket(bucket.key, bucket.node_class, free, ports)

    def fits(self, gone: frozenset[int]) -> bool:
        """Return whether every class fits once these have left; classes are counted one by one."""
        for need, alone, shared in self._wanted:
            have = sum(alone[at] for at in gone if at in alone)
            if have < need and shared:
                have += sum(count for leaving, count in shared.items() if leaving <= gone)
            if have < need:
                return False
        return True

    def without(self, leaving: Sequence[Gang]) -> Ledger:
        """Return the nodes' room once these gangs have left."""
        ledger = self._draft.ledger.fork()
        for gang in leaving:
            for name, cls in self._given_by(gang):
                bucket = ledger.room(self._draft.snapshot.nodes[name])
                if bucket is not None:
                    ledger.give(bucket, [name], cls)
        return ledger
