"""Pod disruption budgets: which of them cover a pod, and how many evictions each allows.

The rules are those of the Eviction API (Kubernetes: "Disruptions", "API-initiated Eviction", "Specifying a Disruption
Budget"; kubernetes pkg/registry/core/pod/storage/eviction.go):

- A pod that has not started, has ended or is being deleted needs no permission.
- A pod that two budgets cover is refused.
- A pod that is not ready needs no permission if the budget is met without it.
- Every other pod takes one of `disruptionsAllowed`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from muster.kube.objects.policy import ALWAYS_ALLOW, PodDisruptionBudget
from muster.kube.objects.selectors import IN, from_label_selector
from muster.scheduler.persistent import Journal

Labels = Mapping[str, str]
_Pair = tuple[str, str]
_ANY: _Pair = ("", "")
"""Key of budgets that require no label value."""


class Budget:
    """A budget with its parsed selector.

    Attributes:
        key: `namespace/name`.
        obj: the object.
        selector: the pods that it covers.
        observed: whether its status counts the pods of its present spec.
        allowed: evictions that it allows now.
        spares_unready: whether it allows evictions of pods that are not ready without counting them.
    """

    __slots__ = ("allowed", "key", "obj", "observed", "selector", "spares_unready")

    def __init__(self, obj: PodDisruptionBudget) -> None:
        self.key = obj.key
        self.selector = from_label_selector(obj.spec.selector)
        self.count(obj)

    def count(self, obj: PodDisruptionBudget) -> None:
        """Update the allowed disruptions, whether they match the present spec, and the rule for unready pods."""
        self.obj, status = obj, obj.status
        self.observed = status.observed_generation >= obj.metadata.generation
        self.allowed = status.disruptions_allowed if self.observed else 0
        always = obj.spec.unhealthy_pod_eviction_policy == ALWAYS_ALLOW
        self.spares_unready = always or 0 < status.desired_healthy <= status.current_healthy

    @property
    def pairs(self) -> tuple[_Pair, ...]:
        """Label pairs; a pod that the budget covers has one of them."""
        for requirement in self.selector.requirements:
            if requirement.operator == IN:
                return tuple((requirement.key, value) for value in requirement.values)
        return (_ANY,)


class Budgets:
    """All budgets, by the labels that they select. Events match no pods with budgets, so they are cheap.

    Args:
        labels_of: the labels of a pod, by UID.

    Attributes:
        known: whether all budgets have been listed. Until then no pod may be evicted.
        by_key: the budgets, by `namespace/name`.
        changed_gangs: gangs whose pods changed in labels, readiness or number; skipped if other pods may be covered.
    """

    def __init__(self, labels_of: Callable[[str], Labels]) -> None:
        self.known = False
        self.by_key: dict[str, Budget] = {}
        self.changed_gangs = Journal()
        self._labels_of = labels_of
        self._by_label: dict[str, dict[_Pair, dict[str, Budget]]] = {}

    def set(self, obj: PodDisruptionBudget) -> None:
        """Add or update a budget."""
        old = self.by_key.get(obj.key)
        if old is not None and old.obj.spec.selector == obj.spec.selector:
            old.count(obj)  # the common case: only the counts changed
            return
        self.remove(obj.key)
        budget = self.by_key[obj.key] = Budget(obj)
        if not budget.selector.nothing:
            by_label = self._by_label.setdefault(obj.namespace, {})
            for pair in budget.pairs:
                by_label.setdefault(pair, {})[obj.key] = budget
        self.changed_gangs.skip()

    def remove(self, key: str) -> None:
        """Remove the budget `namespace/name`."""
        budget = self.by_key.pop(key, None)
        if budget is None:
            return
        by_label = self._by_label.get(budget.obj.namespace, {})
        for pair in budget.pairs:
            by_label.get(pair, {}).pop(key, None)
            if not by_label.get(pair, True):
                del by_label[pair]
        if not by_label:
            self._by_label.pop(budget.obj.namespace, None)
        self.changed_gangs.skip()

    def changed(self, gangs: Iterable[str]) -> None:
        """Record gangs whose pods, their labels or their readiness changed."""
        if self._by_label:  # otherwise no pod is covered, and the first budget makes all readers start again
            self.changed_gangs.extend(gangs)

    def any_in(self, namespace: str) -> bool:
        """Return whether the namespace has budgets that may cover pods."""
        return namespace in self._by_label

    def covering(self, namespace: str, uid: str) -> list[Budget]:
        """Return the budgets that cover the pod."""
        by_label, labels = self._by_label.get(namespace, {}), self._labels_of(uid)
        seen: dict[str, Budget] = {}
        for pair in (_ANY, *labels.items()):
            seen.update(by_label.get(pair, {}))
        return [budget for budget in seen.values() if budget.selector.matches(labels)]
