"""Caches where pods with rules about other pods have room, and how many the rules allow; updated node by node.

Gangs from one template differ only in the pods that their rules select. While none of those pods runs, they share
one table. The results equal those of `with_pod_rules`, which visits all nodes each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator

from muster.scheduler.nodes.bucket import Bucket
from muster.scheduler.nodes.buckets import BucketIndex
from muster.scheduler.nodes.domains import Domains
from muster.scheduler.placement.candidates import Candidate, preference
from muster.scheduler.placement.ledger import fits
from muster.scheduler.placement.matching import Match, Matcher
from muster.scheduler.placement.one_class import Apart, own_rules
from muster.scheduler.placement.spreading import Scope
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.relations import NONE, Spread

_Offer = tuple[Match, int, tuple[int, ...]]
Place = tuple[int, tuple[int, ...], tuple[str | None, ...]]
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


class Openings:
    """The nodes with room for pods of one shape, before rules about other pods.

    Args:
        cls: one of the classes of that shape.
        index: the nodes.
        matcher: what nodes are to pods.

    Attributes:
        stamp: changes with every update.
        room: number of pods these nodes take.
        by_class: number of these nodes per node class, by its number.
    """

    def __init__(self, cls: PodClass, index: BucketIndex, matcher: Matcher) -> None:
        self.stamp = 0
        self.room = 0
        self.by_class: Counter[int] = Counter()
        self._cls, self._index, self._matcher = cls, index, matcher
        self._keys = keys_of(cls)
        self._places: dict[str, Place] = {}
        self._by_values: dict[tuple[str | None, ...], Counter[int]] = {}
        self._known: dict[object, int] = {}
        for bucket in index.values():
            offer = self._offer(bucket)
            for name in bucket.names if offer is not None else ():
                place = self._place(name, offer)
                if place is not None:
                    self._places[name] = place
                    self._count(place, 1)

    def update(self, names: Iterable[str], bucket_of: Callable[[str], Bucket | None]) -> None:
        """Update these nodes, which may have changed buckets."""
        offers: dict[Bucket, _Offer | None] = {}
        for name in names:
            bucket = bucket_of(name)
            if bucket is not None and bucket not in offers:
                offers[bucket] = self._offer(bucket)
            offer = offers[bucket] if bucket is not None else None
            before, after = self._places.get(name), self._place(name, offer)
            if before != after:
                self._count(before, -1)
                self._count(after, 1)
                if after is not None:
                    self._places[name] = after
                else:
                    del self._places[name]
                self.stamp += 1
                self._known.clear()

    def allowed(self, cls: PodClass, need: int, domains: Domains) -> int | None:
        """Return how many of `need` pods of a class of this shape fit; None if only a trial can show it.

        The number is known if the class has at most one rule about itself, and its rules and those of others do not
        involve any existing pod (see `is_met`).
        """
        asked, own = cls.relations or NONE, own_rules(cls)
        if len(own) > 1 or (own and asked.near is not None) or is_met(cls, domains):
            return None
        if self.room < need:
            return self.room
        if asked.near is not None and asked.near not in cls.matches:
            return 0
        must = frozenset([*asked.near_keys, *(rule.key for rule in asked.spread)])
        most = self._remember(("room", must), lambda: sum(times for _, times in self._sites(must)))
        if most >= need and own and isinstance(own[0], Apart):
            key = own[0].key
            most = min(most, self._remember(("apart", key, must), lambda: self._apart(key, must)))
        elif most >= need and own:
            rule = next(rule for rule in asked.spread if rule.peers in cls.matches)
            scope = Scope(rule, cls, domains, self._matcher)
            what = ("even", scope.shape, scope.universe().stamp, rule.max_skew, rule.min_domains, must)
            most = min(most, self._remember(what, lambda: self._even(rule, scope, must)))
        if asked.near is not None:
            near = asked.near_keys
            most = min(most, self._remember(("near", near, must), lambda: self._near(near, must)))
        return most

    def _remember(self, what: object, count: Callable[[], int]) -> int:
        if what not in self._known:
            self._known[what] = count()
        return self._known[what]

    def _sites(self, must: Collection[str]) -> Iterator[tuple[dict[str, str], int]]:
        """Yield domains of the nodes that have all these labels, with the number of pods they take together."""
        for values, kinds in self._by_values.items():
            labels = {key: value for key, value in zip(self._keys, values, strict=True) if value is not None}
            if all(key in labels for key in must):
                yield labels, sum(times * count for times, count in kinds.items())

    def _apart(self, key: str, must: Collection[str]) -> int:
        """Return the limit of one pod in each domain; nodes without the label have no domain."""
        sites = [(labels.get(key), times) for labels, times in self._sites(must)]
        return len({value for value, _ in sites if value is not None}) + sum(t for value, t in sites if value is None)

    def _even(self, rule: Spread, scope: Scope, must: Collection[str]) -> int:
        """Return the limit under an even spread: each domain may exceed the smallest domain's room by the skew."""
        rooms = dict.fromkeys(scope.universe().nodes, 0)
        for labels, times in self._sites(must):
            rooms[labels[rule.key]] += times
        least = min(rooms.values(), default=0) if len(rooms) >= rule.min_domains else 0
        return sum(min(room, least + rule.max_skew) for room in rooms.values())

    def _near(self, keys: tuple[str, ...], must: Collection[str]) -> int:
        together: Counter[tuple[str, ...]] = Counter()
        for labels, times in self._sites(must):
            together[tuple(labels[key] for key in keys)] += times
        return max(together.values(), default=0)

    def _offer(self, bucket: Bucket) -> _Offer | None:
        times = fits(self._cls, bucket)
        match = self._matcher.match(self._cls, bucket.node_class) if times else None
        if match is None or match.reason is not None:
            return None
        return match, times, preference(self._cls, Candidate(bucket, match, times, 1))

    def _place(self, name: str, offer: _Offer | None) -> Place | None:
        if offer is None or not offer[0].serves(name):
            return None
        labels = self._index.domains.labels(name)
        return offer[1], offer[2], tuple(labels.get(key) for key in self._keys)

    def _count(self, place: Place | None, number: int) -> None:
        if place is None:
            return
        times, rank, values = place
        self.room += times * number
        self.by_class[rank[-1]] += number
        kinds = self._by_values.setdefault(values, Counter())
        kinds[times] += number
        if not kinds[times]:
            del kinds[times]
        if not kinds:
            del self._by_values[values]


def is_met(cls: PodClass, domains: Domains) -> bool:
    """Return whether a rule of the class selects an existing pod, or an existing pod has a rule about the class."""
    about = (cls.relations or NONE).about
    return any(peers in domains.came for peers in about) or any(peers in domains.against for peers in cls.matches)
