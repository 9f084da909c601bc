"""Topology spread: whether a domain may take one more pod.

Rules: the Kubernetes page "Pod Topology Spread Constraints". A domain counts if one of its nodes has all labels in the
pod's constraints and meets nodeAffinityPolicy and nodeTaintsPolicy. Terminating pods do not count.
"""

from __future__ import annotations

from collections import Counter

from muster.kube.objects.taints import find_untolerated_taint
from muster.scheduler.nodes.domains import Domains, Layer
from muster.scheduler.nodes.universes import Universe
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.relations import Spread


class Scope:
    """The domains that count for one constraint of a pod class.

    Args:
        rule: the constraint.
        cls: the class with the constraint.
        base: the nodes.
        matcher: matches pods to nodes.
    """

    def __init__(self, rule: Spread, cls: PodClass, base: Domains, matcher: Matcher) -> None:
        self._rule, self._cls, self._base, self._matcher = rule, cls, base, matcher
        asked = cls.relations
        self._keys = {rule.key, *(other.key for other in (asked.spread if asked is not None else ()))}
        # Constraints of the same shape have the same domains, whichever pods they select.
        selection = (frozenset(cls.selector.items()), cls.terms) if rule.honor_affinity else None
        self.shape = (rule.key, frozenset(self._keys), selection, cls.tolerations if rule.honor_taints else None)

    def universe(self) -> Universe:
        """Return all domains that count."""
        return self._matcher.universes.of(self._base, self.shape, self.domain_of)

    def domain_of(self, name: str) -> str | None:
        """Return the domain in which the node counts; None if it does not."""
        labels = self._base.labels(name)
        if not all(key in labels for key in self._keys):
            return None
        node = self._base.nodes[name]
        if node.node_class is None:
            return None
        if self._rule.honor_affinity and not self._matcher.selects(self._cls, node.node_class, name):
            return None
        if self._rule.honor_taints and find_untolerated_taint(node.taints, self._cls.tolerations) is not None:
            return None
        return labels[self._rule.key]


class SpreadCounts:
    """Pod counts per domain for one constraint of a pod class, updated as pods are placed.

    Args:
        rule: the constraint.
        cls: the class with the constraint.
        layer: pod counts.
        matcher: matches pods to nodes.
    """

    def __init__(self, rule: Spread, cls: PodClass, layer: Layer, matcher: Matcher) -> None:
        self.rule = rule
        self.own = rule.peers in cls.matches
        scope = Scope(rule, cls, layer.base, matcher)
        self.counts: dict[str, int] = dict.fromkeys(scope.universe().nodes, 0)
        for node, number in layer.by_node(rule.peers):
            domain = scope.domain_of(node)
            if domain is not None:
                self.counts[domain] = self.counts.get(domain, 0) + number
        self._levels = Counter(self.counts.values())
        self.least = min(self._levels, default=0)

    def allows(self, domain: str) -> bool:
        """Return whether one more pod of the class may be placed in the domain."""
        least = self.least if len(self.counts) >= self.rule.min_domains else 0
        return self.counts.get(domain, 0) + self.own - least <= self.rule.max_skew

    def holds(self, domain: str) -> bool:
        """Return whether a pod already counted in the domain satisfies the constraint."""
        least = self.least if len(self.counts) >= self.rule.min_domains else 0
        return self.counts.get(domain, 0) - least <= self.rule.max_skew

    def add(self, domain: str, number: int = 1) -> bool:
        """Add or subtract pods; return whether the smallest count changed."""
        before, count = self.least, self.counts.get(domain)
        if count is None:
            return False
        self.counts[domain] = count + number
        self._levels[count] -= 1
        if not self._levels[count]:
            del self._levels[count]
        self._levels[count + number] += 1
        if number < 0 or before not in self._levels:
            self.least = min(self._levels)
        return self.least != before
