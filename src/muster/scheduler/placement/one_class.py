"""Places the pods of one class, one after the other, under rules about other pods.

Nodes are grouped by the labels that rules and preferences use, so that a rule treats all nodes of a group alike.
Each pod gets the best node of the best group that every rule allows. If the pods have at most one rule about each
other, this places as many pods as possible. With more rules it may place fewer.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from muster.scheduler.placement.candidates import Candidate, preference
from muster.scheduler.placement.ledger import Ledger
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.placement.rules import attracted, forbidden, has_keys, spreads
from muster.scheduler.placement.spreading import SpreadCounts
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.relations import NONE, Wish

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """A node with room. A smaller `preference` is better."""

    preference: tuple[int, ...]
    name: str
    candidate: Candidate
    labels: Labels


@dataclass(slots=True)
class Group:
    """Nodes that all rules treat alike, the best first."""

    labels: Labels
    sites: list[Site] = field(default_factory=list)
    full: int = 0
    on_next: int = 0


@dataclass(frozen=True, slots=True)
class Apart:
    """Required anti-affinity between pods of one class: one pod in each domain of the label `key`."""

    key: str


@dataclass(frozen=True, slots=True)
class EvenSpread:
    """A required spread of the pods of one class: the class's own spread with this number."""

    number: int


OwnRule = Apart | EvenSpread
"""A rule that pods of one class have about each other."""


def own_rules(cls: PodClass) -> list[OwnRule]:
    """Return the rules that pods of the class have about each other, except required affinity."""
    asked = cls.relations or NONE
    apart = {key for peers, key in asked.apart if peers in cls.matches}
    spread = sum(rule.peers in cls.matches for rule in asked.spread)
    return [*map(Apart, sorted(apart)), *map(EvenSpread, range(spread))]


def sites(
    ledger: Ledger, matcher: Matcher, cls: PodClass, offer: Sequence[Candidate], start: Labels | None = None
) -> list[Site]:
    """Return the nodes that rules about pods outside the class allow, the best first.

    Args:
        ledger: room and pod counts.
        matcher: matches pods to nodes.
        cls: the class.
        offer: candidates with room.
        start: starting domains, if required affinity leaves them open.
    """
    layer = ledger.layer
    closed = forbidden(cls, layer)
    tied = attracted(cls, layer)
    within = {key: {value} for key, value in (start or {}).items()} if tied is None else tied
    fixed = [state for state in spreads(cls, layer, matcher) if not state.own]
    found = []
    for candidate in offer:
        rank = preference(cls, candidate)
        for name in candidate.names if candidate.names is not None else ledger.names(candidate.bucket):
            labels = layer.base.labels(name)
            if (
                not any(labels.get(key) in values for key, values in closed.items())
                and has_keys(cls, labels)
                and all(labels.get(key) in values for key, values in within.items())
                and all(state.allows(labels[state.rule.key]) for state in fixed)
            ):
                found.append(Site(rank, name, candidate, labels))
    return sorted(found, key=lambda site: (site.preference, site.name))


class Filling:
    """One attempt to place the pods of one class.

    Args:
        ledger: room and pod counts; only `commit` changes it.
        matcher: matches pods to nodes.
        cls: the class.
        open_sites: nodes that rules about pods outside the class allow.
        need: number of pods.
        only: apply only this one of `own_rules`, to find its limit; None: apply all.
    """

    def __init__(
        self,
        ledger: Ledger,
        matcher: Matcher,
        cls: PodClass,
        open_sites: Sequence[Site],
        need: int,
        only: OwnRule | None = None,
    ) -> None:
        self._ledger, self._cls, self._need = ledger, cls, need
        asked = cls.relations or NONE
        rules = own_rules(cls) if only is None else [only]
        self._apart = [rule.key for rule in rules if isinstance(rule, Apart)]
        own = [state for state in spreads(cls, ledger.layer, matcher) if state.own]
        self._spreads = [state for number, state in enumerate(own) if EvenSpread(number) in rules]
        self._even = [SpreadCounts(rule, cls, ledger.layer, matcher) for rule in asked.even] if only is None else []
        self._wishes: Sequence[Wish] = asked.wishes if only is None else ()
        free = only is None and asked.near is not None and attracted(cls, ledger.layer) is None
        self._near_keys = asked.near_keys if free else ()
        # If every node is its own domain, anti-affinity means one pod per node.
        single = [key for key in self._apart if _is_each_its_own(key, open_sites)]
        self._one_each = bool(single)
        self._apart = [key for key in self._apart if key not in single]
        self._groups: list[Group] = []
        self._with: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._group(open_sites)
        self._mine: dict[str, set[str]] = defaultdict(set)
        self._home: Labels | None = None
        self._chosen: list[Site] = []

    def run(self) -> int:
        """Place as many of the needed pods as possible; return how many."""
        room = {pair: sum(map(self._room, numbers)) for pair, numbers in self._with.items()}
        self._start = {pair: (0, left) if left >= self._need else (1, -left) for pair, left in room.items()}
        heap = [(self._score(number), number) for number in range(len(self._groups))]
        heapq.heapify(heap)
        parked: list[set[int]] = [set() for _ in self._spreads]
        while heap and len(self._chosen) < self._need:
            score, number = heapq.heappop(heap)
            group = self._groups[number]
            if group.full >= len(group.sites) or self._is_closed(group.labels):
                continue
            now = self._score(number)
            if now > score:
                heapq.heappush(heap, (now, number))
                continue
            blocked = next(
                (at for at, state in enumerate(self._spreads) if not state.allows(group.labels[state.rule.key])), None
            )
            if blocked is not None:
                parked[blocked].add(number)
                continue
            again = [number, *self._place(group)]
            for at, state in enumerate(self._spreads):
                if state.add(group.labels[state.rule.key]):
                    again += parked[at]
                    parked[at].clear()
            for number in again:
                heapq.heappush(heap, (self._score(number), number))
        return len(self._chosen)

    def commit(self, slots: Sequence[int]) -> dict[int, str]:
        """Take the room of the placed pods and return their nodes by slot."""
        for site, times in Counter(self._chosen).items():
            self._ledger.take(site.candidate.bucket, [site.name], self._cls, times)
        return {slot: site.name for slot, site in zip(slots, self._chosen, strict=True)}

    def _group(self, open_sites: Sequence[Site]) -> None:
        keys = {*self._apart, *self._near_keys, *(wish.key for wish in self._wishes)}
        keys |= {state.rule.key for state in (*self._spreads, *self._even)}
        order = sorted(keys)
        numbers: dict[tuple[str | None, ...], int] = {}
        for site in open_sites:
            values = tuple(site.labels.get(key) for key in order)
            number = numbers.get(values)
            if number is None:
                number = numbers[values] = len(self._groups)
                self._groups.append(
                    Group({key: value for key, value in zip(order, values, strict=True) if value is not None})
                )
                for pair in self._groups[number].labels.items():
                    self._with[pair].append(number)
            self._groups[number].sites.append(site)

    def _room(self, number: int) -> int:
        return sum(1 if self._one_each else site.candidate.times for site in self._groups[number].sites)

    def _is_closed(self, labels: Labels) -> bool:
        """Return whether the class can never place another pod in these domains."""
        if any(key in labels and labels[key] in self._mine[key] for key in self._apart):
            return True
        return self._home is not None and any(labels[key] != self._home[key] for key in self._near_keys)

    def _score(self, number: int) -> tuple[Any, ...]:
        """Return a sort key, the best lowest: preferences, even spread, then keeping nodes whole."""
        group = self._groups[number]
        labels = group.labels
        first = group.sites[min(group.full, len(group.sites) - 1)].preference
        wished = sum(wish.weight for wish in self._wishes if wish.key in labels and self._holds(wish, labels[wish.key]))
        start = [
            self._start[wish.key, labels[wish.key]]
            for wish in self._wishes
            if wish.weight > 0 and wish.peers in self._cls.matches and wish.key in labels
        ]
        even = sum(state.counts.get(labels.get(state.rule.key, ""), 0) for state in self._even)
        return (first[0], first[1] - wished, tuple(start), even, *first[2:])

    def _holds(self, wish: Wish, value: str) -> bool:
        if wish.peers in self._cls.matches and value in self._mine[wish.key]:
            return True
        return self._ledger.layer.number(wish.peers, wish.key, value) > 0

    def _place(self, group: Group) -> Iterable[int]:
        """Put one pod on the group's next node; return the groups whose score improved."""
        site = group.sites[group.full]
        self._chosen.append(site)
        group.on_next += 1
        if self._one_each or group.on_next >= site.candidate.times:
            group.full, group.on_next = group.full + 1, 0
        if self._near_keys and self._home is None:
            self._home = group.labels
        for state in self._even:
            if state.own:
                state.add(group.labels.get(state.rule.key, ""))
        better: list[int] = []
        for key, value in group.labels.items():
            if value not in self._mine[key]:
                self._mine[key].add(value)
                if any(w.key == key and w.weight > 0 and w.peers in self._cls.matches for w in self._wishes):
                    better += self._with[key, value]
        return better


def _is_each_its_own(key: str, open_sites: Sequence[Site]) -> bool:
    values = {site.labels.get(key) for site in open_sites}
    return len(values) == len(open_sites) and None not in values
