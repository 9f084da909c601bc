"""The rules about other pods, read from the pods each time and checked pod by pod: slow, plain, and nothing of ours.

A pod may go to a node by the filters of kube-scheduler's InterPodAffinity and PodTopologySpread, its nodeSelector, its
taints and the room for GPUs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Spec = dict[str, Any]
"""A pod as JSON."""
Node = dict[str, Any]
"""name, labels, gpus, taints (keys of NoSchedule taints)."""
Placed = tuple[tuple[int, str], ...]
"""(index of a gang's pod, node), sorted."""


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    if selector is None:
        return False
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for rule in selector.get("matchExpressions", ()):
        value = labels.get(rule["key"])
        operator = rule["operator"]
        if operator == "In" and value not in rule["values"]:
            return False
        if operator == "NotIn" and value in rule["values"]:
            return False
        if operator == "Exists" and value is None:
            return False
        if operator == "DoesNotExist" and value is not None:
            return False
    return True


def is_about(term: Mapping[str, Any], owner: Spec, other: Spec, namespaces: Mapping[str, Mapping[str, str]]) -> bool:
    meta = other["metadata"]
    spaces = set(term.get("namespaces", ()))
    by_label = term.get("namespaceSelector")
    if not spaces and by_label is None:
        spaces = {owner["metadata"]["namespace"]}
    here = meta["namespace"] in spaces or (by_label is not None and selects(by_label, namespaces[meta["namespace"]]))
    labels, own = meta["labels"], owner["metadata"]["labels"]
    same = all(labels.get(key) == own[key] for key in term.get("matchLabelKeys", ()) if key in own)
    differ = all(labels.get(key) != own[key] for key in term.get("mismatchLabelKeys", ()) if key in own)
    return here and same and differ and selects(term.get("labelSelector"), labels)


def terms(pod: Spec, kind: str) -> list[dict[str, Any]]:
    rules = pod["spec"].get("affinity", {}).get(kind, {})
    found: list[dict[str, Any]] = rules.get("requiredDuringSchedulingIgnoredDuringExecution", [])
    return found


class Book:
    """Nodes and pods that are there, and what they allow."""

    def __init__(self, nodes: Sequence[Node], pods: Sequence[tuple[Spec, str]], spaces: Mapping[str, Any]) -> None:
        self.nodes = {node["name"]: node for node in nodes}
        self.pods = list(pods)
        self.spaces = spaces

    def value(self, name: str, key: str) -> str | None:
        return self.nodes[name]["labels"].get(key) if name in self.nodes else None

    def allows(self, pod: Spec, name: str, beside: Sequence[tuple[Spec, str]] = ()) -> bool:
        """Whether the pod may go there now, with these pods too; `beside` are members of its gang."""
        there = [*self.pods, *beside]
        return (
            self.serves(pod, name)
            and self.has_room(pod, name, there)
            and self.keeps_apart(pod, name, there)
            and self.is_near(pod, name, there)
            and self.is_even(pod, name, there)
        )

    def serves(self, pod: Spec, name: str) -> bool:
        return self.is_selected(pod, name) and self.is_tolerated(pod, name)

    def is_selected(self, pod: Spec, name: str) -> bool:
        return all(self.value(name, key) == value for key, value in pod["spec"].get("nodeSelector", {}).items())

    def is_tolerated(self, pod: Spec, name: str) -> bool:
        return set(self.nodes[name]["taints"]) <= {rule["key"] for rule in pod["spec"].get("tolerations", ())}

    def has_room(self, pod: Spec, name: str, there: Sequence[tuple[Spec, str]]) -> bool:
        used = sum(gpus(other) for other, where in there if where == name)
        gang = pod["metadata"]["labels"].get("muster.dev/gang")
        mates = (o for o, where in there if where == name and o["metadata"]["labels"].get("muster.dev/gang") == gang)
        return used + gpus(pod) <= self.nodes[name]["gpus"] and (gang is None or not any(mates))

    def keeps_apart(self, pod: Spec, name: str, there: Sequence[tuple[Spec, str]]) -> bool:
        for other, where in there:
            mine = [t for t in terms(pod, "podAntiAffinity") if is_about(t, pod, other, self.spaces)]
            theirs = [t for t in terms(other, "podAntiAffinity") if is_about(t, other, pod, self.spaces)]
            for term in mine + theirs:
                value = self.value(name, term["topologyKey"])
                if value is not None and value == self.value(where, term["topologyKey"]):
                    return False
        return True

    def is_near(self, pod: Spec, name: str, there: Sequence[tuple[Spec, str]]) -> bool:
        rules = terms(pod, "podAffinity")
        if any(self.value(name, term["topologyKey"]) is None for term in rules):
            return False

        def is_one(other: Spec) -> bool:
            return all(is_about(term, pod, other, self.spaces) for term in rules)

        ones = [where for other, where in there if rules and is_one(other)]
        domains = {(t["topologyKey"], self.value(w, t["topologyKey"])) for w in ones for t in rules}
        domains = {pair for pair in domains if pair[1] is not None}
        if not domains and is_one(pod):
            return True
        return all((term["topologyKey"], self.value(name, term["topologyKey"])) in domains for term in rules)

    def is_even(self, pod: Spec, name: str, there: Sequence[tuple[Spec, str]], *, counted: bool = False) -> bool:
        """`counted`: the pod is one of those that are there."""
        rules = [
            rule
            for rule in pod["spec"].get("topologySpreadConstraints", ())
            if rule["whenUnsatisfiable"] == "DoNotSchedule"
        ]
        for rule in rules:
            counts: dict[str, int] = {}
            for node in self.nodes:
                value = self.value(node, rule["topologyKey"])
                if value is None or any(self.value(node, other["topologyKey"]) is None for other in rules):
                    continue
                if rule.get("nodeAffinityPolicy", "Honor") == "Honor" and not self.is_selected(pod, node):
                    continue
                if rule.get("nodeTaintsPolicy", "Ignore") == "Honor" and not self.is_tolerated(pod, node):
                    continue
                mine = [
                    other
                    for other, where in there
                    if where == node
                    and not other["metadata"].get("deletionTimestamp")
                    and self.is_same(rule, pod, other)
                ]
                counts[value] = counts.get(value, 0) + len(mine)
            least = min(counts.values(), default=0) if len(counts) >= rule.get("minDomains", 1) else 0
            value = self.value(name, rule["topologyKey"])
            if value is None:
                return False
            own = 0 if counted else int(self.is_same(rule, pod, pod))
            if counts.get(value, 0) + own - least > rule["maxSkew"]:
                return False
        return True

    def is_same(self, rule: Mapping[str, Any], pod: Spec, other: Spec) -> bool:
        return is_about({**rule, "namespaces": [pod["metadata"]["namespace"]]}, pod, other, self.spaces)

    def is_reached(self, steps: Sequence[tuple[Spec, str]]) -> bool:
        """Whether there is an order of binding these pods to these nodes in which each is allowed in its turn."""
        todo, seen = [frozenset[int]()], set[frozenset[int]]()
        while todo:
            done = todo.pop()
            if len(done) == len(steps):
                return True
            beside = [steps[index] for index in sorted(done)]
            for index in set(range(len(steps))) - done:
                after = done | {index}
                if after not in seen and self.allows(*steps[index], beside):
                    seen.add(after)
                    todo.append(after)
        return False

    def ways(self, gang: Sequence[Spec]) -> Iterator[Placed]:
        """Every placement of the whole gang that some order of binding its pods reaches."""
        seen: set[Placed] = set()
        todo: list[Placed] = [()]
        while todo:
            placed = todo.pop()
            beside = [(gang[index], name) for index, name in placed]
            if len(placed) == len(gang):
                if all(self.is_even(pod, name, [*self.pods, *beside], counted=True) for pod, name in beside):
                    yield placed
                continue
            missing = set(range(len(gang))) - {index for index, _ in placed}
            for index, name in itertools.product(sorted(missing), self.nodes):
                after = tuple(sorted([*placed, (index, name)]))
                if after not in seen and self.allows(gang[index], name, beside):
                    seen.add(after)
                    todo.append(after)


def gpus(pod: Spec) -> int:
    return int(pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
