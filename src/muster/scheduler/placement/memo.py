"""Caches why gangs with rules about other pods do not fit, until something relevant changes.

Placing such a gang, or proving that it cannot fit, visits each node that it could use. The cached answers equal those
of a new search. If one rule decides, they are counted (see `room_tables`). Otherwise they are kept until one of these
changes: a node's room for the gang's pods, a domain, or a pod that a rule selects.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from muster.scheduler.nodes.bucket import Bucket
from muster.scheduler.nodes.buckets import BucketIndex
from muster.scheduler.nodes.domains import Domains
from muster.scheduler.placement.candidates import Groups, Shortage
from muster.scheduler.placement.ledger import Ledger, fits
from muster.scheduler.placement.matching import Matcher, MatcherAfterHandover
from muster.scheduler.placement.place import Failed, choose, room_when_empty
from muster.scheduler.placement.room_tables import Openings, shape_of
from muster.scheduler.placement.rules import is_related
from muster.scheduler.placement.spreading import Scope
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.relations import NONE

if TYPE_CHECKING:
    from muster.scheduler.snapshot import Snapshot

LOOKED_BACK = 1000
"""Up to this many changes (or the number of nodes) are applied one by one; with more, all is computed again."""
SHAPES = 32
"""Number of cached tables of pod shapes; older ones are rebuilt on use."""
UNASKED = 200
"""Drop the cache after this many snapshots without a query."""
Held = tuple[str, PodClass | None]


@dataclass(frozen=True, slots=True)
class _Asked:
    """All inputs of a query: equal queries have equal answers."""

    classes: tuple[tuple[PodClass, int], ...]
    reserved: frozenset[int] = frozenset()
    banned: frozenset[str] = frozenset()
    given_up: tuple[Held, ...] = ()


@dataclass(frozen=True, slots=True)
class _Answer:
    asked: _Asked
    depends: tuple[object, ...]
    short: Shortage | None


class _Side:
    """Answers for one index of nodes: with the present pods, or without gangs."""

    def __init__(self, bucket: Literal["bucket", "empty_bucket"]) -> None:
        self._bucket = bucket
        self._index: BucketIndex | None = None
        self._tables: dict[object, Openings] = {}
        self.answers: dict[str, _Answer] = {}
        self._unasked = 0

    def table(self, cls: PodClass, index: BucketIndex, matcher: Matcher) -> Openings:
        """Return the updated table for pods of this shape."""
        self._unasked = 0
        if self._index is None:
            self._index, index.moved = index, []
        self._catch_up()
        shape = shape_of(cls)
        found = self._tables.pop(shape, None) or Openings(cls, index, matcher)
        self._tables[shape] = found
        if len(self._tables) > SHAPES:
            del self._tables[next(iter(self._tables))]
        return found

    def find(self, key: str, asked: _Asked, depends: tuple[object, ...]) -> _Answer | None:
        """Return the cached answer to this query if it is still valid."""
        answer = self.answers.get(key)
        return answer if answer is not None and answer.asked == asked and answer.depends == depends else None

    def keep(self, key: str, answer: _Answer) -> None:
        """Cache an answer."""
        self.answers[key] = answer

    def drop(self, key: str) -> None:
        """Drop an answer."""
        self.answers.pop(key, None)

    def next(self) -> None:
        """Apply the changes up to this snapshot."""
        self._unasked += 1
        if self._unasked > UNASKED:
            self.clear()
        else:
            self._catch_up()

    def clear(self) -> None:
        """Drop everything."""
        self.answers.clear()
        self._tables.clear()
        if self._index is not None:
            self._index.moved, self._index = None, None

    def _catch_up(self) -> None:
        if self._index is None or not self._index.moved:
            return
        moved, nodes = dict.fromkeys(self._index.moved), self._index.domains.nodes
        self._index.moved.clear()
        if len(moved) > max(LOOKED_BACK, len(nodes) // 4):
            self._tables.clear()

        def bucket_of(name: str) -> Bucket | None:
            found: Bucket | None = getattr(nodes[name], self._bucket) if name in nodes else None
            return found

        for table in self._tables.values():
            table.update(moved, bucket_of)


class Refusals:
    """Cached answers by gang key, for gangs with rules; kept by `ClusterState`, used by decide."""

    def __init__(self) -> None:
        self._now, self._empty = _Side("bucket"), _Side("empty_bucket")

    def keys(self) -> set[str]:
        """Return the gangs with cached answers."""
        return {*self._now.answers, *self._empty.answers}

    def forget(self, key: str) -> None:
        """Drop the answers on a deleted gang."""
        for side in (self._now, self._empty):
            side.drop(key)

    def clear(self) -> None:
        """Drop all answers, because the node classes changed."""
        for side in (self._now, self._empty):
            side.clear()

    def next(self) -> None:
        """Start a new snapshot."""
        for side in (self._now, self._empty):
            side.next()

    def choose(
        self,
        key: str,
        ledger: Ledger,
        snapshot: Snapshot,
        groups: Groups,
        *,
        reserved: Collection[int] = (),
        failed: Failed = (),
        taken: Collection[str] = (),
        given_up: Collection[Held] = (),
    ) -> dict[int, str] | Shortage:
        """Like `place.choose`, but cached. If the plan used room the gang could use, it searches again."""
        matcher, index = snapshot.matcher, snapshot.buckets
        kept: tuple[_Asked, tuple[object, ...]] | None = None
        if any(is_related(cls, ledger.layer) for cls in groups) and not _is_touched(ledger, groups, matcher):
            tables = {cls: self._now.table(cls, index, matcher) for cls in groups}
            closed = frozenset(reserved).intersection(set().union(*(table.by_class for table in tables.values())))
            banned = frozenset(node for slot, node in failed if any(slot in slots for slots in groups.values()))
            asked = _Asked(_classes(groups), closed, banned.union(taken), tuple(given_up))
            if asked == _Asked(asked.classes):
                short = _counted(groups, tables, index.domains)
                if short is not None:
                    return short
            kept = (asked, _depends(tables, index.domains, matcher))
            answer = self._now.find(key, *kept)
            if answer is not None and answer.short is not None:
                return answer.short
        found = choose(ledger, matcher, groups, reserved=reserved, failed=failed, taken=taken, given_up=given_up)
        if kept is not None and isinstance(found, Shortage):
            self._now.keep(key, _Answer(*kept, found))
        return found

    def impossible(self, key: str, snapshot: Snapshot, groups: Groups) -> Shortage | None:
        """Return the shortage on the usable nodes without the gangs on them; None if there is none.

        Nodes that are closed only while they change hands count for pods that may use them under any owner.
        Otherwise a gang would lose its place in the queue to smaller ones whenever teams' shares change.
        """
        short = self._impossible_now(key, snapshot, groups)
        if short is None or not any(bucket.node_class.leaving for bucket in snapshot.empty_buckets.values()):
            return short
        found = room_when_empty(Ledger(snapshot.empty_buckets), MatcherAfterHandover(snapshot.matcher), groups)
        return short if isinstance(found, Shortage) else None

    def _impossible_now(self, key: str, snapshot: Snapshot, groups: Groups) -> Shortage | None:
        matcher, index = snapshot.matcher, snapshot.empty_buckets
        ledger = Ledger(index)
        if not any(is_related(cls, ledger.layer) for cls in groups):
            found = room_when_empty(ledger, matcher, groups)
            return found if isinstance(found, Shortage) else None
        tables = {cls: self._empty.table(cls, index, matcher) for cls in groups}
        if len(groups) == 1:
            cls, slots = next(iter(groups.items()))
            have = tables[cls].allowed(cls, len(slots), index.domains)
            if have is not None:
                return Shortage(cls, len(slots), have) if have < len(slots) else None
        asked, depends = _Asked(_classes(groups)), _depends(tables, index.domains, matcher)
        answer = self._empty.find(key, asked, depends)
        if answer is None:
            found = room_when_empty(ledger, matcher, groups)
            answer = _Answer(asked, depends, found if isinstance(found, Shortage) else None)
            self._empty.keep(key, answer)
        return answer.short


def _classes(groups: Groups) -> tuple[tuple[PodClass, int], ...]:
    return tuple((cls, len(slots)) for cls, slots in groups.items())


def _counted(groups: Groups, tables: dict[PodClass, Openings], domains: Domains) -> Shortage | None:
    """Return the shortage that counting can show."""
    for cls, slots in groups.items():
        have: int | None = tables[cls].room
        if len(groups) == 1:
            have = tables[cls].allowed(cls, len(slots), domains)
        if have is not None and have < len(slots):
            return Shortage(cls, len(slots), have)
    return None


def _depends(tables: dict[PodClass, Openings], domains: Domains, matcher: Matcher) -> tuple[object, ...]:
    """Return a value that changes when the answer may change, apart from this plan."""
    found: list[object] = [domains.relabelled]
    for cls, table in tables.items():
        found += [table, table.stamp]
        found += [
            (peers, domains.came.get(peers))
            for peers in sorted((cls.relations or NONE).about, key=lambda peers: peers.number)
        ]
        against = [(peers, domains.against[peers]) for peers in cls.subjects if peers in domains.against]
        if against:  # their topology keys need not be labels that the class reads
            found += [domains.moved, *against]
        if cls.relations is not None:
            rules = (*cls.relations.spread, *cls.relations.even)
            found += [Scope(rule, cls, domains, matcher).universe().stamp for rule in rules]
    return tuple(found)


def _is_touched(ledger: Ledger, groups: Groups, matcher: Matcher) -> bool:
    """Return whether the plan took room that the gang could use, or placed pods that its rules select."""
    for cls in groups:
        if ledger.layer.differs((cls.relations or NONE).about, cls.matches):
            return True
        for bucket in ledger.touched():
            if fits(cls, bucket) and matcher.match(cls, bucket.node_class).reason is None:
                return True
    return False
