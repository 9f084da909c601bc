"""Caches why gangs with rules about other pods do not fit, until something relevant changes.

Placing such a gang, or proving that it cannot fit, visits each node that it could use. The cached answers equal those
of a new search. If one rule decides, they are counted (see `room_tables`). Otherwise they are kept until one of these
changes: a node's room for the gang's pods, a domain, or a pod that a rule selects.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

import msgspec

from muster.scheduler.nodes.bucket import Bucket
from muster.scheduler.nodes.buckets import BucketIndex
from muster.scheduler.nodes.domains import Domains
from muster.scheduler.placement.candidates import Groups, Shortage
from muster.scheduler.placement.closed import OPEN, Closed
from muster.scheduler.placement.ledger import Ledger, fits
from muster.scheduler.placement.matching import Matcher, MatcherAfterHandover
from muster.scheduler.placement.place import Failed, Nearest, choose, room_when_empty
from muster.scheduler.placement.room_tables import Counted, Openings, openings, shape_of, updated
from muster.scheduler.placement.rules import is_related
from muster.scheduler.placement.spreading import Scope
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.relations import NONE
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
    closed: Collection[object] = ()
    banned: frozenset[str] = frozenset()
    given_up: tuple[Held, ...] = ()


@dataclass(frozen=True, slots=True)
class _Answer:
    asked: _Asked
    depends: tuple[object, ...]
    short: Shortage | None


class KnownRefusals(msgspec.Struct, frozen=True):
    """Memo of one side of `Refusals`.

    Attributes:
        tables: by shape, each with its position in the journal of the nodes; those used last are at the end.
        counted: numbers counted from these tables.
        answers: by gang key.
        unasked: number of snapshots without a query since the last one.
    """

    tables: Mapping[object, tuple[int, Openings]] = {}
    counted: Mapping[tuple[Openings, object], int] = {}
    answers: Mapping[str, _Answer] = {}
    unasked: int = 0


NO_REFUSALS = KnownRefusals()


class _Side:
    """Answers for one index of nodes: with the present pods, or without gangs."""

    def __init__(
        self,
        index: BucketIndex,
        bucket: Literal["bucket", "empty_bucket"],
        matcher: Matcher,
        known: KnownRefusals,
    ) -> None:
        self._index, self._bucket, self._matcher, self._before = index, bucket, matcher, known
        self._asked = False
        self._tables: dict[object, tuple[int, Openings]] = {}
        self.counted: Counted = {}
        self._answers: dict[str, _Answer] = {}

    def known(self, gangs: Mapping[str, object]) -> KnownRefusals:
        """Return all that is known of these gangs, for the next snapshot."""
        before = self._before
        if not self._asked:
            if not before.tables or before.unasked >= UNASKED:
                return NO_REFUSALS
            gone = not before.answers.keys() <= gangs.keys()
            answers = {key: each for key, each in before.answers.items() if key in gangs} if gone else before.answers
            return KnownRefusals(before.tables, before.counted, answers, before.unasked + 1)
        tables = frozenset(table for _, table in self._tables.values())
        return KnownRefusals(
            self._tables,
            {key: count for key, count in self.counted.items() if key[0] in tables},
            {key: each for key, each in self._answers.items() if key in gangs},
        )

    def table(self, cls: PodClass) -> Openings:
        """Return the updated table for pods of this shape."""
        if not self._asked:
            self._asked = True
            self._tables, self.counted = dict(self._before.tables), dict(self._before.counted)
            self._answers = dict(self._before.answers)
        shape = shape_of(cls)
        known = self._tables.pop(shape, None)
        found = self._updated(*known) if known is not None else openings(cls, self._index, self._matcher)
        self._tables[shape] = self._index.journal.end, found
        if len(self._tables) > SHAPES:
            del self._tables[next(iter(self._tables))]
        return found

    def find(self, key: str, asked: _Asked, depends: tuple[object, ...]) -> _Answer | None:
        """Return the known answer to this query if it is still valid."""
        answer = self._answers.get(key)
        return answer if answer is not None and answer.asked == asked and answer.depends == depends else None

    def keep(self, key: str, answer: _Answer) -> None:
        """Keep an answer; call it after `table`."""
        self._answers[key] = answer

    def _updated(self, at: int, table: Openings) -> Openings:
        journal, nodes = self._index.journal, self._index.domains.nodes
        if at == journal.end:
            return table
        moved = journal.since(at)
        if moved is None or len(moved) > max(LOOKED_BACK, len(nodes) // 4):
            return openings(table.cls, self._index, self._matcher)

        def bucket_of(name: str) -> Bucket | None:
            found: Bucket | None = getattr(nodes[name], self._bucket) if name in nodes else None
            return found

        return updated(table, moved, self._index, self._matcher, bucket_of)


class Refusals:
    """Answers for gangs with rules about other pods, each computed once while it is valid.

    Args:
        snapshot: the cluster.
        matcher: matches pods to nodes.
        known: answers about an earlier snapshot, with the present pods and without gangs.
    """

    def __init__(self, snapshot: Snapshot, matcher: Matcher, known: tuple[KnownRefusals, KnownRefusals]) -> None:
        self._snapshot, self._matcher = snapshot, matcher
        self._now = _Side(snapshot.buckets, "bucket", matcher, known[0])
        self._empty = _Side(snapshot.empty_buckets, "empty_bucket", matcher, known[1])

    @property
    def known(self) -> tuple[KnownRefusals, KnownRefusals]:
        """All answers, for the next snapshot. This object must not be used afterwards."""
        gangs = self._snapshot.gangs
        return self._now.known(gangs), self._empty.known(gangs)

    def choose(
        self,
        key: str,
        ledger: Ledger,
        groups: Groups,
        *,
        closed: Closed = OPEN,
        failed: Failed = (),
        taken: Collection[str] = (),
        given_up: Collection[Held] = (),
        nearest: Nearest | None = None,
    ) -> dict[int, str] | Shortage:
        """Like `place.choose`, but cached. If the plan used room the gang could use, it searches again."""
        matcher, index = self._matcher, self._snapshot.buckets
        question: tuple[_Asked, tuple[object, ...]] | None = None
        if any(is_related(cls, ledger.layer) for cls in groups) and not _is_touched(ledger, groups, matcher):
            tables = {cls: self._now.table(cls) for cls in groups}
            kept = _relevant(closed, tables.values())
            banned = frozenset(node for slot, node in failed if any(slot in slots for slots in groups.values()))
            asked = _Asked(_classes(groups), kept, banned.union(taken), tuple(given_up))
            if asked == _Asked(asked.classes):
                short = self._counted(groups, tables)
                if short is not None:
                    return short
            question = (asked, _depends(tables, index.domains, matcher))
            answer = self._now.find(key, *question)
            if answer is not None and answer.short is not None:
                return answer.short
        found = choose(
            ledger, matcher, groups, closed=closed, failed=failed, taken=taken, given_up=given_up, nearest=nearest
        )
        if question is not None and isinstance(found, Shortage):
            self._now.keep(key, _Answer(*question, found))
        return found

    def impossible(self, key: str, groups: Groups) -> Shortage | None:
        """Return the shortage on the usable nodes without the gangs on them; None if there is none.

        Nodes that are closed only while they change hands count for pods that may use them under any owner.
        Otherwise a gang would lose its place in the queue to smaller ones whenever teams' shares change.
        """
        short, index = self._impossible_now(key, groups), self._snapshot.empty_buckets
        if short is None or not any(bucket.node_class.leaving for bucket in index.values()):
            return short
        found = room_when_empty(Ledger(index), MatcherAfterHandover(self._matcher), groups)
        return short if isinstance(found, Shortage) else None

    def _impossible_now(self, key: str, groups: Groups) -> Shortage | None:
        matcher, index = self._matcher, self._snapshot.empty_buckets
        ledger = Ledger(index)
        if not any(is_related(cls, ledger.layer) for cls in groups):
            found = room_when_empty(ledger, matcher, groups)
            return found if isinstance(found, Shortage) else None
        tables = {cls: self._empty.table(cls) for cls in groups}
        if len(groups) == 1:
            cls, slots = next(iter(groups.items()))
            have = tables[cls].allowed(cls, len(slots), index.domains, matcher, self._empty.counted)
            if have is not None:
                return Shortage(cls, len(slots), have) if have < len(slots) else None
        asked, depends = _Asked(_classes(groups)), _depends(tables, index.domains, matcher)
        answer = self._empty.find(key, asked, depends)
        if answer is None:
            found = room_when_empty(ledger, matcher, groups)
            answer = _Answer(asked, depends, found if isinstance(found, Shortage) else None)
            self._empty.keep(key, answer)
        return answer.short

    def _counted(self, groups: Groups, tables: dict[PodClass, Openings]) -> Shortage | None:
        """Return the shortage that counting can show."""
        domains = self._snapshot.buckets.domains
        for cls, slots in groups.items():
            have: int | None = tables[cls].room
            if len(groups) == 1:
                have = tables[cls].allowed(cls, len(slots), domains, self._matcher, self._now.counted)
            if have is not None and have < len(slots):
                return Shortage(cls, len(slots), have)
        return None


def _classes(groups: Groups) -> tuple[tuple[PodClass, int], ...]:
    return tuple((cls, len(slots)) for cls, slots in groups.items())


def _relevant(closed: Closed, tables: Collection[Openings]) -> tuple[object, ...]:
    """Return the part of `closed` that matters to pods of these tables, in a form that can be compared."""

    def matters(number: int) -> bool:
        return any(table.by_class.get(number) for table in tables)

    classes = frozenset(number for number in closed.classes if matters(number))
    kept = frozenset(each for each in closed.kept.items() if matters(each[0]))
    return (classes, kept, closed.nodes) if classes or kept or closed.nodes else ()


def _depends(tables: dict[PodClass, Openings], domains: Domains, matcher: Matcher) -> tuple[object, ...]:
    """Return a value that changes when the answer may change, apart from this plan."""
    found: list[object] = [domains.relabelled]
    for cls, table in tables.items():
        found.append(table)
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
