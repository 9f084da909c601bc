"""Counts pods per topology domain for affinity and spread rules; updated with each pod.

A domain is the set of nodes with the same value of a label. Nodes without the label have no domain for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from muster.scheduler.nodes.node_record import NodeRecord
from muster.scheduler.persistent import Journal
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.relations import Peers, Term

Subject = Peers | Term
"""The subject of a count: the pods of a set, or the pods with anti-affinity to a set within one topology key."""
Labels = Mapping[str, str]
_NONE: Counter[str] = Counter()
_NO_LABELS: Labels = {}


class Domains:
    """Pod counts by node and by domain. Subjects without pods cost nothing; sums are kept for the keys of `sum_by`.

    Args:
        nodes: all nodes; those that do not exist have no labels.

    Attributes:
        clock: changes with every update.
        journal: nodes that came, went, or changed their class or domains.
        came: clock when pods of a set last came, went or began to terminate; only sets with pods.
        against: clock when pods with anti-affinity to a set last came or went; only sets with such pods.
        relabelled: how often nodes with pods changed labels; `moved`: how often any node did.
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
        self._keys: dict[Subject, dict[str, None]] = {}
        self._keys_about: dict[Peers, dict[str, None]] = {}
        self._leaving: dict[str, tuple[str, PodClass]] = {}
        self._left: dict[Peers, Counter[str]] = {}
        self.journal = Journal()

    def count(self, cls: PodClass, node: str, number: int = 1) -> None:
        """Add `number` pods of the class on the node; a negative number removes them."""
        labels = self.labels(node)
        self.clock += 1
        for subject in cls.subjects:
            on = self._on.get(subject)
            if on is None:
                on = self._begin(subject)
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
        """Record that a pod is terminating. Affinity still counts such a pod, but spreading does not."""
        if uid not in self._leaving:
            self._leaving[uid] = (node, cls)
            self.clock += 1
            for peers in cls.matches:
                _add(self._left.setdefault(peers, Counter()), node, 1)
                self.came[peers] = self.clock

    def left(self, uid: str) -> None:
        """Record that a terminating pod is gone or no longer counted."""
        node, cls = self._leaving.pop(uid, ("", None))
        self.clock += 1
        for peers in cls.matches if cls is not None else ():
            if peers in self.came:
                self.came[peers] = self.clock
            _add(self._left[peers], node, -1)
            if not self._left[peers]:
                del self._left[peers]

    def labels(self, node: str) -> Labels:
        """Return the node's labels; none if it does not exist."""
        record = self.nodes.get(node)
        return record.labels if record is not None and record.uid else _NO_LABELS

    def move(self, node: str, old: Labels, new: Labels) -> None:
        """Move the counts of the node's pods to its new domains."""
        self.touch((node,))
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

    def sum_by(self, subject: Subject, key: str) -> None:
        """Keep the sums by domain of the key; pods with anti-affinity are always summed by the key of their rule."""
        keys = self._keys.setdefault(subject, {})
        if key not in keys:
            keys[key] = None
            if subject in self._on:
                self._in.setdefault(subject, {})[key] = self._summed(subject, key)

    def drop_sums(self, subjects: Iterable[Subject]) -> None:
        """Stop maintaining sums for these subjects."""
        for subject in subjects:
            self._keys.pop(subject, None)
            self._in.pop(subject, None)

    def by_domain(self, subject: Subject, key: str) -> Mapping[str, int]:
        """Return the counts per domain of the key, without empty domains."""
        if subject not in self._on:
            return _NONE
        found = self._in.get(subject, {}).get(key)
        return found if found is not None else self._summed(subject, key)

    def _begin(self, subject: Subject) -> Counter[str]:
        """Begin to count pods of the subject."""
        if isinstance(subject, tuple):
            self.sum_by(subject, subject[1])
        keys = self._keys.get(subject)
        if keys:
            self._in[subject] = {key: Counter() for key in keys}
        on = self._on[subject] = Counter()
        return on

    def _summed(self, subject: Subject, key: str) -> Counter[str]:
        found: Counter[str] = Counter()
        for node, number in self._on[subject].items():
            labels = self.labels(node)
            if key in labels:
                _add(found, labels[key], number)
        return found

    def by_node(self, peers: Peers) -> Iterator[tuple[str, int]]:
        """Yield (node, number of those pods on it that are not terminating)."""
        left = self._left.get(peers, _NONE)
        for node, number in self._on.get(peers, _NONE).items():
            yield node, number - left.get(node, 0)

    def keys_about(self, peers: Peers) -> Collection[str]:
        """Return the keys for which some pod has anti-affinity to the set."""
        return self._keys_about.get(peers, ())

    def touch(self, nodes: Collection[str]) -> None:
        """Record that nodes came, went, or changed their class or domains."""
        self.clock += len(nodes)
        self.journal.extend(nodes)

    def copy(self) -> Domains:
        """Return independent counts over the same nodes."""
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
            self._keys.pop(subject, None)
            del self._keys_about[peers][key]
            if not self._keys_about[peers]:
                del self._keys_about[peers], self.against[peers]
        else:
            self.came.pop(subject, None)


class Layer:
    """Counts with the pods that a plan already placed: an overlay on `base`, which it never changes."""

    def __init__(self, base: Domains, delta: Domains | None = None) -> None:
        self.base = base
        self._delta = delta

    def fork(self) -> Layer:
        """Return a copy of this layer that may be discarded."""
        return Layer(self.base, self._delta.copy() if self._delta is not None else None)

    def count(self, cls: PodClass, node: str, number: int = 1) -> None:
        """Add `number` pods of the class on the node; a negative number removes them."""
        if self._delta is None:
            self._delta = Domains(self.base.nodes)
        self._delta.count(cls, node, number)

    def differs(self, about: Iterable[Peers], members: Iterable[Peers]) -> bool:
        """Return whether this layer changed pods of sets in `about`, or pods with anti-affinity to `members`."""
        if self._delta is None:
            return False
        came, against = self._delta.came, self._delta.against
        return any(peers in came for peers in about) or any(peers in against for peers in members)

    def number(self, subject: Subject, key: str, value: str) -> int:
        """Return the count in the domain."""
        number = self.base.by_domain(subject, key).get(value, 0)
        if self._delta is None:
            return number
        self._delta.sum_by(subject, key)
        return number + self._delta.by_domain(subject, key).get(value, 0)

    def values(self, subject: Subject, key: str) -> set[str]:
        """Return the domains with a count above 0."""
        base = self.base.by_domain(subject, key)
        if self._delta is None:
            return set(base)
        self._delta.sum_by(subject, key)
        delta = self._delta.by_domain(subject, key)
        return {value for value in {*base, *delta} if base.get(value, 0) + delta.get(value, 0) > 0}

    def by_node(self, peers: Peers) -> Iterator[tuple[str, int]]:
        """Yield (node, number of those pods that are not terminating); a node may occur twice, its numbers add up."""
        yield from self.base.by_node(peers)
        if self._delta is not None:
            yield from self._delta.by_node(peers)

    def keys_about(self, peers: Peers) -> Collection[str]:
        """Return the keys for which some pod has anti-affinity to the set."""
        base = self.base.keys_about(peers)
        return {*base, *self._delta.keys_about(peers)} if self._delta is not None else base


def _add(counts: Counter[str], what: str, number: int) -> None:
    counts[what] += number
    if not counts[what]:
        del counts[what]
