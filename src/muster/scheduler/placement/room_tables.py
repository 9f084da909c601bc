"""Caches where pods with rules about other pods have room, and how many the rules allow; updated node by node.

Gangs from one template differ only in the pods that their rules select. While none of those pods runs, they share
one table. The results equal those of `with_pod_rules`, which visits all nodes each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from muster.scheduler.nodes.bucket import Bucket
from muster.scheduler.nodes.buckets import BucketIndex
from muster.scheduler.nodes.domains import Domains
from muster.scheduler.persistent import PersistentMap
from muster.scheduler.placement.candidates import Candidate, preference
from muster.scheduler.placement.ledger import fits
from muster.scheduler.placement.matching import Match, Matcher
from muster.scheduler.placement.one_class import Apart, own_rules
from muster.scheduler.placement.spreading import Scope
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.relations import NONE, Spread

BucketOf = Callable[[str], Bucket | None]
_Offer = tuple[Match, int, tuple[int, ...]]
_Values = tuple[str | None, ...]
Place = tuple[int, tuple[int, ...], _Values]
"""Pods that a node takes, its preference, and its values of the labels that the rules use."""


def shape_of(cls: PodClass) -> object:
    """Return a key, equal for classes with the same room on every node and rules over the same labels."""
    return (
        frozenset(cls.request.items()),
        cls.ports,
        frozenset(cls.selector.items()),
        cls.terms,
        cls.preferred,
        cls.tolerations,
        cls.volume_terms,
        cls.alone,
        cls.whole,
        keys_of(cls),
    )


def keys_of(cls: PodClass) -> tuple[str, ...]:
    """Return the node labels that the rules and preferences of the class use."""
    asked = cls.relations or NONE
    found = {*asked.near_keys, *(key for _, key in asked.apart), *(wish.key for wish in asked.wishes)}
    return tuple(sorted(found | {rule.key for rule in (*asked.spread, *asked.even)}))


Counted = dict[tuple["Openings", object], int]
"""Numbers that were counted from a version of a table; `what` says how."""


@dataclass(frozen=True, slots=True, eq=False)
class Openings:
    """The nodes with room for pods of one shape, before rules about other pods. A version never changes.

    Attributes:
        cls: one of the classes of that shape.
        keys: node labels that its rules use.
        room: number of pods these nodes take.
        places: what each of these nodes takes.
        by_class: number of these nodes per node class, by its number.
        by_values: by values of the labels: how many nodes take how many pods.
    """

    cls: PodClass
    keys: tuple[str, ...]
    room: int = 0
    places: PersistentMap[str, Place] = field(default_factory=PersistentMap)
    by_class: PersistentMap[int, int] = field(default_factory=PersistentMap)
    by_values: PersistentMap[_Values, Mapping[int, int]] = field(default_factory=PersistentMap)

    def allowed(self, cls: PodClass, need: int, domains: Domains, matcher: Matcher, counted: Counted) -> int | None:
        """Return how many of `need` pods of a class of this shape fit; None if only a trial can show it.

        The number is known if the class has at most one rule about itself, and its rules and those of others do not
        involve any existing pod (see `is_met`). `counted` keeps numbers for further questions.
        """
        asked, own = cls.relations or NONE, own_rules(cls)
        if len(own) > 1 or (own and asked.near is not None) or is_met(cls, domains):
            return None
        if self.room < need:
            return self.room
        if asked.near is not None and asked.near not in cls.matches:
            return 0

        def once(what: object, count: Callable[[], int]) -> int:
            key = (self, what)
            if key not in counted:
                counted[key] = count()
            return counted[key]

        must = frozenset([*asked.near_keys, *(rule.key for rule in asked.spread)])
        most = once(("room", must), lambda: sum([times for _, times in self._sites(must)]))
        if most >= need and own and isinstance(own[0], Apart):
            key = own[0].key
            most = min(most, once(("apart", key, must), lambda: self._apart(key, must)))
        elif most >= need and own:
            rule = next(rule for rule in asked.spread if rule.peers in cls.matches)
            scope = Scope(rule, cls, domains, matcher)
            what = ("even", scope.shape, scope.universe().stamp, rule.max_skew, rule.min_domains, must)
            most = min(most, once(what, lambda: self._even(rule, scope, must)))
        if asked.near is not None:
            near = asked.near_keys
            most = min(most, once(("near", near, must), lambda: self._near(near, must)))
        return most

    def _sites(self, must: Collection[str]) -> Iterator[tuple[_Values, int]]:
        """Yield domains of the nodes that have all these labels, with the number of pods they take together."""
        places = [self.keys.index(key) for key in must]
        for values, kinds in self.by_values.items():
            for at in places:
                if values[at] is None:
                    break
            else:
                room = 0
                for times, count in kinds.items():
                    room += times * count
                yield values, room

    def _apart(self, key: str, must: Collection[str]) -> int:
        """Return the limit of one pod in each domain; nodes without the label have no domain."""
        at = self.keys.index(key)
        sites = [(values[at], times) for values, times in self._sites(must)]
        return len({value for value, _ in sites if value is not None}) + sum(t for value, t in sites if value is None)

    def _even(self, rule: Spread, scope: Scope, must: Collection[str]) -> int:
        """Return the limit under an even spread: each domain may exceed the smallest domain's room by the skew."""
        rooms: dict[str | None, int] = dict.fromkeys(scope.universe().nodes, 0)
        at = self.keys.index(rule.key)
        for values, times in self._sites(must):
            rooms[values[at]] += times
        least = min(rooms.values(), default=0) if len(rooms) >= rule.min_domains else 0
        return sum(min(room, least + rule.max_skew) for room in rooms.values())

    def _near(self, keys: tuple[str, ...], must: Collection[str]) -> int:
        places = [self.keys.index(key) for key in keys]
        together: Counter[_Values] = Counter()
        for values, times in self._sites(must):
            together[tuple([values[at] for at in places])] += times
        return max(together.values(), default=0)


def openings(cls: PodClass, index: BucketIndex, matcher: Matcher) -> Openings:
    """Return the table of all nodes."""
    keys = keys_of(cls)
    change = _Change(Openings(cls, keys))
    for bucket in index.values():
        offer = _offer(cls, bucket, matcher)
        for name in bucket.names if offer is not None else ():
            place = _place(name, offer, index.domains, keys)
            if place is not None:
                change.move(name, None, place)
    return change.made()


def updated(
    table: Openings, names: Iterable[str], index: BucketIndex, matcher: Matcher, bucket_of: BucketOf
) -> Openings:
    """Return the table after these nodes may have changed buckets; the same one if it holds for them as before."""
    offers: dict[Bucket, _Offer | None] = {}
    change = _Change(table)
    for name in names:
        bucket = bucket_of(name)
        if bucket is not None and bucket not in offers:
            offers[bucket] = _offer(table.cls, bucket, matcher)
        offer = offers[bucket] if bucket is not None else None
        before, after = table.places.get(name), _place(name, offer, index.domains, table.keys)
        if before != after:
            change.move(name, before, after)
    return change.made()


class _Change:
    """Changes of a table, counted in a copy of what they touch."""

    def __init__(self, table: Openings) -> None:
        self._table = table
        self._room = table.room
        self._places: dict[str, Place | None] = {}
        self._by_class: Counter[int] = Counter()
        self._by_values: dict[_Values, Counter[int]] = {}

    def move(self, name: str, before: Place | None, after: Place | None) -> None:
        """Note another place for the node."""
        self._places[name] = after
        self._count(before, -1)
        self._count(after, 1)

    def _count(self, place: Place | None, number: int) -> None:
        if place is None:
            return
        times, rank, values = place
        self._room += times * number
        self._by_class[rank[-1]] += number
        kinds = self._by_values.get(values)
        if kinds is None:
            kinds = self._by_values[values] = Counter(self._table.by_values.get(values))
        kinds[times] += number
        if not kinds[times]:
            del kinds[times]

    def made(self) -> Openings:
        """Return the version with these changes; the same one if there are none."""
        table = self._table
        if not self._places:
            return table
        by_class = {number: (table.by_class.get(number) or 0) + more for number, more in self._by_class.items()}
        return Openings(
            table.cls,
            table.keys,
            self._room,
            table.places.with_changes(self._places),
            table.by_class.with_changes({number: count or None for number, count in by_class.items()}),
            table.by_values.with_changes({values: kinds or None for values, kinds in self._by_values.items()}),
        )


def _offer(cls: PodClass, bucket: Bucket, matcher: Matcher) -> _Offer | None:
    times = fits(cls, bucket)
    match = matcher.match(cls, bucket.node_class) if times else None
    if match is None or match.reason is not None:
        return None
    return match, times, preference(cls, Candidate(bucket, match, times, 1))


def _place(name: str, offer: _Offer | None, domains: Domains, keys: tuple[str, ...]) -> Place | None:
    if offer is None or not offer[0].serves(name):
        return None
    labels = domains.labels(name)
    return offer[1], offer[2], tuple(labels.get(key) for key in keys)


def is_met(cls: PodClass, domains: Domains) -> bool:
    """Return whether a rule of the class selects an existing pod, or an existing pod has a rule about the class."""
    about = (cls.relations or NONE).about
    return any(peers in domains.came for peers in about) or any(peers in domains.against for peers in cls.matches)
