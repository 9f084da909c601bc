"""Which pods the rules of other pods are about. A pod that no rule is about costs a look into an empty table."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from muster.kube.selectors import IN
from muster.scheduler.pods.relations import Peers, Who

NAMESPACE_NAME = "kubernetes.io/metadata.name"
FEW = 1000
"""So many sets more than twice those in use are remembered without looking whether any rule is about them."""
Labels = Mapping[str, str]
NOBODY: frozenset[Peers] = frozenset()


class PeerTable:
    """All sets of pods that rules are about, the pods, and who is in which set.

    Sets and pods find each other by one label that the set's selector demands; only sets that demand none are compared
    with every pod.
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
        """Whether there are so many sets that those no rule is about any more should be told with `keep`."""
        return len(self._peers) > self._enough

    def keep(self, wanted: Collection[Peers]) -> Collection[Peers]:
        """Forget all sets but these; returns those forgotten."""
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
        """Return the set of pods that all these terms are about. A new one is looked up for by `newcomers`."""
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
        """Take over the pod's labels; returns whether they are others than before."""
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
        """The pod is gone."""
        before = self._pods.pop(uid, None)
        if before is not None:
            self._unindex(uid, before[1])

    def labels_of(self, uid: str) -> Labels:
        """Return the pod's labels."""
        return self._pods[uid][1]

    def of(self, uid: str) -> frozenset[Peers]:
        """Return the sets the pod is in."""
        if not self._peers or uid not in self._pods:
            return NOBODY
        namespace, labels = self._pods[uid]
        found = list(self._anywhere)
        for key, values in self._by_label.items():
            if key in labels:
                found += values.get(labels[key], ())
        return frozenset(peers for peers in found if self._is_in(peers, namespace, labels)) if found else NOBODY

    def newcomers(self) -> set[str]:
        """Return the pods that are in a set made since this was last asked."""
        if not self._fresh:
            return set()
        fresh, self._fresh = self._fresh, []
        return {uid for peers in fresh for uid in self._candidates(peers) if self._is_in(peers, *self._pods[uid])}

    def set_namespace(self, name: str, labels: Labels | None) -> list[str]:
        """Take over a namespace's labels (None: it is gone); returns the pods whose sets may be others now."""
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
    """A label, and its values, without which no pod is in the set; None where there is no such label."""
    for who in terms:
        for requirement in who.selector.requirements:
            if requirement.operator == IN:
                return requirement.key, tuple(dict.fromkeys(requirement.values))
    return None
