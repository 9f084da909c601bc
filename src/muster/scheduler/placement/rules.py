"""Checks the rules about other pods for one pod on one node, and nothing else.

Meaning: kube-scheduler's plugins InterPodAffinity and PodTopologySpread (filtering).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from muster.scheduler.nodes.domains import Layer, Subject
from muster.scheduler.placement.matching import Matcher
from muster.scheduler.placement.spreading import SpreadCounts
from muster.scheduler.pods.pod_class import PodClass
from muster.scheduler.pods.relations import NONE
from muster.scheduler.reasons import NodeReason, NodeWhy

Labels = Mapping[str, str]


def is_related(cls: PodClass, layer: Layer) -> bool:
    """Return whether rules about other pods matter for the class."""
    if cls.relations is not None:
        return True
    for peers in cls.matches:  # noqa: SIM110  a loop is faster, and every gang asks
        if layer.keys_about(peers):
            return True
    return False


def forbidden(cls: PodClass, layer: Layer) -> dict[str, set[str]]:
    """Return, by topology key, the domains closed to the class by its own anti-affinity or that of others."""
    closed: dict[str, set[str]] = {}
    for peers, key in cls.relations.apart if cls.relations is not None else ():
        closed.setdefault(key, set()).update(layer.values(peers, key))
    for peers in cls.matches:
        for key in layer.keys_about(peers):
            closed.setdefault(key, set()).update(layer.values((peers, key), key))
    return {key: values for key, values in closed.items() if values}


def intruded(cls: PodClass, layer: Layer, name: str, own: Iterable[tuple[str, PodClass]]) -> NodeReason | None:
    """Return the anti-affinity that newly closes a chosen node; `own`: pods counted for the slot itself."""
    labels = layer.base.labels(name)
    own = list(own)
    pairs: list[tuple[Subject, str]] = [(peers, key) for peers, key in (cls.relations or NONE).apart]
    pairs += [((peers, key), key) for peers in cls.matches for key in layer.keys_about(peers)]
    for subject, key in pairs:
        value = labels.get(key)
        if value is not None:
            mine = [
                node for node, each in own if subject in each.subjects and layer.base.labels(node).get(key) == value
            ]
            if layer.number(subject, key, value) > len(mine):
                return NodeReason(NodeWhy.POD_ANTI_AFFINITY, key)
    return None


def attracted(cls: PodClass, layer: Layer) -> dict[str, set[str]] | None:
    """Return, by topology key, the domains that required affinity allows; None if it allows all.

    Pods that match every term decide this. If there are none, a class that matches its own terms may start anywhere;
    any other class has no allowed domain.
    """
    asked = cls.relations
    if asked is None or asked.near is None:
        return None
    found = {key: layer.values(asked.near, key) for key in asked.near_keys}
    if not any(found.values()) and asked.near in cls.matches:
        return None
    return found


def has_keys(cls: PodClass, labels: Labels) -> bool:
    """Return whether the node has the labels that required affinity and spread constraints use."""
    asked = cls.relations
    if asked is None:
        return True
    return all(key in labels for key in asked.near_keys) and all(rule.key in labels for rule in asked.spread)


def spreads(cls: PodClass, layer: Layer, matcher: Matcher) -> list[SpreadCounts]:
    """Return the state of each of the class's DoNotSchedule constraints."""
    asked = cls.relations
    return [SpreadCounts(rule, cls, layer, matcher) for rule in asked.spread] if asked is not None else []


def ends_even(members: Mapping[PodClass, Collection[str]], layer: Layer, matcher: Matcher) -> bool:
    """Return whether the spread constraints of a gang's pods hold on these nodes with the whole gang in place.

    Pods of one class keep them at each step, but pods of a later class may break them.
    """
    if len(members) == 1:
        return True
    return all(
        state.holds(layer.base.labels(name).get(state.rule.key, ""))
        for cls, names in members.items()
        for state in spreads(cls, layer, matcher)
        for name in names
    )


class Rules:
    """The rules for one more pod of the class, given the counts in `layer`."""

    def __init__(self, cls: PodClass, layer: Layer, matcher: Matcher) -> None:
        self._cls = cls
        self._labels = layer.base.labels
        self._closed = forbidden(cls, layer)
        self._near = attracted(cls, layer)
        self._spreads = spreads(cls, layer, matcher)

    def why_not(self, name: str) -> NodeReason | None:
        """Return the first rule that rejects the node for the pod, None if it is allowed."""
        labels = self._labels(name)
        for key, values in self._closed.items():
            if labels.get(key) in values:
                return NodeReason(NodeWhy.POD_ANTI_AFFINITY, key)
        asked = self._cls.relations
        for key in asked.near_keys if asked is not None else ():
            if key not in labels or (self._near is not None and labels[key] not in self._near[key]):
                return NodeReason(NodeWhy.POD_AFFINITY, key)
        for counts in self._spreads:
            domain = labels.get(counts.rule.key)
            if domain is None or not counts.allows(domain):
                return NodeReason(NodeWhy.TOPOLOGY_SPREAD, counts.rule.key)
        return None
