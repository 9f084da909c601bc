"""Tracks which pods the rules of other pods select. For a pod that no rule selects, this is one failed lookup."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from muster.kube.objects.selectors import IN
from muster.scheduler.pods.relations import Peers, Who

NAMESPACE_NAME = "kubernetes.io/metadata.name"
FEW = 1000
"""Unused sets are dropped when there are this many sets more than twice those in use."""
Labels = Mapping[str, str]
NO_PEERS: frozenset[Peers] = frozenset()


class PeerTable:
    """Index of the pods that rules select: sets of pods, and the members of each set.

    One label that a set's selector requires links sets and pods. Only sets without such a label are compared with
    every pod.
    """

    def __init__(self) -> None:
        self._peers: dict[tuple[Who, ...], Peers] = {}
        self._by_label: dict[str, dict[str, list[Peers]]] = {}
        self._anywhere: list[Peers] = []
        self._pods: dict[str, tuple[str, Labels]] = {}
        self._pods_by_label: dict[str, dict[str, set[str]]] = {}
        self._namespaces: dict[str, Labels] = {}
        self._fresh: list[Peers] = []
        self._numbers = itertools.count()
        self._enough = FEW

    @property
    def many(self) -> bool:
        """Whether there are so many sets that the caller should drop unused ones with `keep`."""
        return len(self._peers) > self._enough

    def keep(self, wanted: Collection[Peers]) -> Collection[Peers]:
        """Drop all other sets; return the dropped ones."""
        gone = {terms: peers for terms, peers in self._peers.items() if peers not in wanted}
        for terms, peers in gone.items():
            del self._peers[terms]
            demanded = _demanded(terms)
            if demanded is None:
                self._anywhere.remove(peers)
                continue
            key, values = demanded
            for value in values:
                self._by_label[key][value].remove(peers)
                if not self._by_label[key][value]:
                    del self._by_label[key][value]
            if not self._by_label[key]:
                del self._by_label[key], self._pods_by_label[key]
        self._fresh = [peers for peers in self._fresh if peers in wanted]
        self._enough = FEW + 2 * len(self._peers)
        return gone.values()

    def intern(self, terms: tuple[Who, ...]) -> Peers:
        """Return the set of pods that all these terms select. `newcomers` reports the pods of a new set."""
        found = self._peers.get(terms)
        if found is None:
            found = self._peers[terms] = Peers(next(self._numbers), terms)
            self._fresh.append(found)
            demanded = _demanded(terms)
            if demanded is None:
                self._anywhere.append(found)
            else:
                self._index(demanded[0])
                for value in demanded[1]:
                    self._by_label.setdefault(demanded[0], {}).setdefault(value, []).append(found)
        return found

    def set_pod(self, uid: str, namespace: str, labels: Labels) -> bool:
        """Set the pod's labels; return whether they changed."""
        before = self._pods.get(uid)
        if before is not None and (before[1] is labels or before[1] == labels):
            return False
        if before is not None:
            self._unindex(uid, before[1])
        self._pods[uid] = (namespace, labels)
        for key, values in self._pods_by_label.items():
            if key in labels:
                values.setdefault(labels[key], set()).add(uid)
        return before is not None

    def remove_pod(self, uid: str) -> None:
        """Remove a deleted pod."""
        before = self._pods.pop(uid, None)
        if before is not None:
            self._unindex(uid, before[1])

    def labels_of(self, uid: str) -> Labels:
        """Return the pod's labels."""
        return self._pods[uid][1]

    def of(self, uid: str) -> frozenset[Peers]:
        """Return the sets the pod is in."""
        if not self._peers or uid not in self._pods:
            return NO_PEERS
        namespace, labels = self._pods[uid]
        found = list(self._anywhere)
        for key, values in self._by_label.items():
            if key in labels:
                found += values.get(labels[key], ())
        return frozenset(peers for peers in found if self._is_in(peers, namespace, labels)) if found else NO_PEERS

    def newcomers(self) -> set[str]:
        """Return the pods in sets that were created since the last call."""
        if not self._fresh:
            return set()
        fresh, self._fresh = self._fresh, []
        return {uid for peers in fresh for uid in self._candidates(peers) if self._is_in(peers, *self._pods[uid])}

    def set_namespace(self, name: str, labels: Labels | None) -> list[str]:
        """Set a namespace's labels, or None if it is gone; return the pods whose sets may have changed."""
        before = self._namespaces.get(name)
        if labels is None:
            self._namespaces.pop(name, None)
        else:
            self._namespaces[name] = labels
        if before == labels or not any(
            who.namespace_selector.requirements for peers in self._peers.values() for who in peers.terms
        ):
            return []
        return [uid for uid, (namespace, _) in self._pods.items() if namespace == name]

    def _is_in(self, peers: Peers, namespace: str, labels: Labels) -> bool:
        of_namespace = {**self._namespaces.get(namespace, {}), NAMESPACE_NAME: namespace}
        return all(who.matches(namespace, labels, of_namespace) for who in peers.terms)

    def _candidates(self, peers: Peers) -> Iterable[str]:
        demanded = _demanded(peers.terms)
        if demanded is None:
            return self._pods
        values = self._pods_by_label[demanded[0]]
        return [uid for value in demanded[1] for uid in values.get(value, ())]

    def _index(self, key: str) -> None:
        if key not in self._pods_by_label:
            values: dict[str, set[str]] = defaultdict(set)
            for uid, (_, labels) in self._pods.items():
                if key in labels:
                    values[labels[key]].add(uid)
            self._pods_by_label[key] = dict(values)

    def _unindex(self, uid: str, labels: Labels) -> None:
        for key, values in self._pods_by_label.items():
            uids = values.get(labels.get(key, ""))
            if uids is not None:
                uids.discard(uid)
                if not uids:
                    del values[labels[key]]


def _demanded(terms: tuple[Who, ...]) -> tuple[str, tuple[str, ...]] | None:
    """Return a label and values that every pod of the set has; None if there is none."""
    for who in terms:
        for requirement in who.selector.requirements:
            if requirement.operator == IN:
                return requirement.key, tuple(dict.fromkeys(requirement.values))
    return None
