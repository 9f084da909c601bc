"""How many of the pods that rules are about run in each topology domain, kept up to date pod by pod.

A domain is the nodes that share one value of a label. Nodes without the label are in no domain of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from muster.scheduler.nodes.node_class import NodeRecord
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.relations import Peers, Term

Subject = Peers | Term
"""What is counted: the pods of a set, or the pods that must not have any of a set in their domain of a key."""
Labels = Mapping[str, str]
_NONE: Counter[str] = Counter()
_NO_LABELS: Labels = {}
_LOOKED_BACK = 1000
"""So many changes of nodes, or as many as there are nodes, are remembered for universes that are not up to date."""
_UNIVERSES = 64
"""Rules of other shapes than the newest so many are looked up anew."""


@dataclass(slots=True)
class Universe:
    """The domains of a spread constraint: those that some node is in. `stamp` is another once they are others."""

    stamp: int = 0
    nodes: Counter[str] = field(default_factory=Counter)
    of: dict[str, str] = field(default_factory=dict)
    at: int = -1


class Domains:
    """Counts by node and by domain. Only subjects with pods cost anything, only keys that were asked for are summed.

    Args:
        nodes: all nodes; those that do not exist have no labels.

    Attributes:
        clock: another number after each change.
        came: when pods of a set last came, went or began to leave; nothing where there are none.
        against: when pods that want none of a set near last came or went; nothing where there are none.
        relabelled: how often nodes with pods on them got other labels; `moved`: how often any did.
    """

    def __init__(self, nodes: Mapping[str, NodeRecord]) -> None:
        self.nodes = nodes
        self.clock = 0
        self.came: dict[Peers, int] = {}
        self.against: dict[Peers, int] = {}
        self.relabelled = 0
        self.moved = 0
        self._on: dict[Subject, Counter[str]] = {}
        self._in: dict[Subject, dict[str, Counter[str]]] = {}
        self._keys_about: dict[Peers, dict[str, None]] = {}
        self._leaving: dict[str, tuple[str, PodClass]] = {}
        self._left: dict[Peers, Counter[str]] = {}
        self._universes: dict[object, Universe] = {}
        self._touched: list[str] = []
        self._dropped = 0

    def count(self, cls: PodClass, node: str, number: int = 1) -> None:
        """`number` pods of the class came to the node, or left it."""
        labels = self.labels(node)
        self.clock += 1
        for subject in cls.subjects:
            on = self._on.setdefault(subject, Counter())
            _add(on, node, number)
            for key, domains in self._in.get(subject, {}).items():
                if key in labels:
                    _add(domains, labels[key], number)
            if isinstance(subject, tuple):
                self._keys_about.setdefault(subject[0], {})[subject[1]] = None
                self.against[subject[0]] = self.clock
            else:
                self.came[subject] = self.clock
            if not on:
                self._forget(subject)

    def leave(self, uid: str, cls: PodClass, node: str) -> None:
        """A pod is on its way out: it still repels and attracts others but no longer counts for spreading."""
        if uid not in self._leaving:
            self._leaving[uid] = (node, cls)
            self.clock += 1
            for peers in cls.matches:
                _add(self._left.setdefault(peers, Counter()), node, 1)
                self.came[peers] = self.clock

    def left(self, uid: str) -> None:
        """The pod is gone, or counted no more."""
        node, cls = self._leaving.pop(uid, ("", None))
        self.clock += 1
        for peers in cls.matches if cls is not None else ():
            if peers in self.came:
                self.came[peers] = self.clock
            _add(self._left[peers], node, -1)
            if not self._left[peers]:
                del self._left[peers]

    def labels(self, node: str) -> Labels:
        """Return the node's labels; none where it does not exist."""
        record = self.nodes.get(node)
        return record.labels if record is not None and record.uid else _NO_LABELS

    def move(self, node: str, old: Labels, new: Labels) -> None:
        """Count the node's pods in its new domains instead of its old ones."""
        self.touch(node)
        self.moved += 1
        record = self.nodes.get(node)
        if record is not None and (record.pods or record.holds):
            self.relabelled += 1
        for subject, by_key in self._in.items():
            number = self._on.get(subject, _NONE).get(node, 0)
            for key, domains in by_key.items() if number else ():
                if old.get(key) != new.get(key):
                    if key in old:
                        _add(domains, old[key], -number)
                    if key in new:
                        _add(domains, new[key], number)

    def by_domain(self, subject: Subject, key: str) -> Mapping[str, int]:
        """Return how many there are in each domain of the key that has any."""
        on = self._on.get(subject)
        if not on:
            return _NONE
        by_key = self._in.setdefault(subject, {})
        found = by_key.get(key)
        if found is None:
            found = by_key[key] = Counter()
            for node, number in on.items():
                labels = self.labels(node)
                if key in labels:
                    _add(found, labels[key], number)
        return found

    def by_node(self, peers: Peers) -> Iterator[tuple[str, int]]:
        """Yield nodes with the number of those pods on them that stay."""
        left = self._left.get(peers, _NONE)
        for node, number in self._on.get(peers, _NONE).items():
            yield node, number - left.get(node, 0)

    def keys_about(self, peers: Peers) -> Iterable[str]:
        """Return the keys in whose domains some pod wants none of the set."""
        return self._keys_about.get(peers, ())

    def touch(self, node: str) -> None:
        """The node came, went, or is of another kind or in other domains than before."""
        self.clock += 1
        if self._universes:
            self._touched.append(node)
            if len(self._touched) > max(_LOOKED_BACK, len(self.nodes)):
                self._dropped += len(self._touched)
                self._touched.clear()

    def universe(self, what: object, domain_of: Callable[[str], str | None]) -> Universe:
        """Return the domains under a rule, remembered under `what`: it costs what nodes changed since."""
        known = self._universes.pop(what, None) or Universe(self.clock)
        self._universes[what] = known
        if len(self._universes) > _UNIVERSES:
            del self._universes[next(iter(self._universes))]
        end = self._dropped + len(self._touched)
        if known.at < self._dropped:
            before, known.of = known.nodes.keys(), {}
            for node in self.nodes:
                domain = domain_of(node)
                if domain is not None:
                    known.of[node] = domain
            known.nodes = Counter(known.of.values())
            if before != known.nodes.keys():
                known.stamp = self.clock + 1
        elif known.at < end:
            self._look_again(known, dict.fromkeys(self._touched[known.at - self._dropped :]), domain_of)
        known.at = end
        return known

    def _look_again(self, known: Universe, touched: Iterable[str], domain_of: Callable[[str], str | None]) -> None:
        for node in touched:
            before = known.of.pop(node, None)
            after = domain_of(node) if node in self.nodes else None
            if after is not None:
                known.of[node] = after
            if before == after:
                continue
            for domain, number in ((before, -1), (after, 1)):
                if domain is not None:
                    had = domain in known.nodes
                    _add(known.nodes, domain, number)
                    if had != (domain in known.nodes):
                        known.stamp = self.clock + 1

    def copy(self) -> Domains:
        """Return counts of their own over the same nodes."""
        other = Domains(self.nodes)
        other._on = {subject: Counter(on) for subject, on in self._on.items()}
        other._keys_about = {peers: dict(keys) for peers, keys in self._keys_about.items()}
        other.came, other.against = dict(self.came), dict(self.against)
        return other

    def _forget(self, subject: Subject) -> None:
        del self._on[subject]
        self._in.pop(subject, None)
        if isinstance(subject, tuple):
            peers, key = subject
            del self._keys_about[peers][key]
            if not self._keys_about[peers]:
                del self._keys_about[peers], self.against[peers]
        else:
            self.came.pop(subject, None)


class Layer:
    """The counts as they would be with what a plan already placed: a thin layer over `base`, which it never changes."""

    def __init__(self, base: Domains, delta: Domains | None = None) -> None:
        self.base = base
        self._delta = delta if delta is not None else Domains(base.nodes)

    def fork(self) -> Layer:
        """Return a layer that starts from here and may be dropped."""
        return Layer(self.base, self._delta.copy())

    def count(self, cls: PodClass, node: str, number: int = 1) -> None:
        """`number` pods of the class are placed on the node, or taken off it."""
        self._delta.count(cls, node, number)

    def differs(self, about: Iterable[Peers], members: Iterable[Peers]) -> bool:
        """Whether pods of these sets, or pods that want none of those other sets near, came or went in this layer."""
        came, against = self._delta.came, self._delta.against
        return any(peers in came for peers in about) or any(peers in against for peers in members)

    def number(self, subject: Subject, key: str, value: str) -> int:
        """Return how many there are in the domain."""
        base, delta = self.base.by_domain(subject, key), self._delta.by_domain(subject, key)
        return base.get(value, 0) + delta.get(value, 0)

    def values(self, subject: Subject, key: str) -> set[str]:
        """Return the domains that have any."""
        base, delta = self.base.by_domain(subject, key), self._delta.by_domain(subject, key)
        if not delta:
            return set(base)
        return {value for value in {*base, *delta} if base.get(value, 0) + delta.get(value, 0) > 0}

    def by_node(self, peers: Peers) -> Iterator[tuple[str, int]]:
        """Yield (node, number of those pods on it that stay); the numbers of one node add up."""
        yield from self.base.by_node(peers)
        yield from self._delta.by_node(peers)

    def keys_about(self, peers: Peers) -> set[str]:
        """Return the keys in whose domains some pod wants none of the set."""
        return {*self.base.keys_about(peers), *self._delta.keys_about(peers)}


def _add(counts: Counter[str], what: str, number: int) -> None:
    counts[what] += number
    if not counts[what]:
        del counts[what]
