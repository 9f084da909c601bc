"""Pod disruption budgets: which of them cover a gang's pods, and whether they allow evicting all of these at once.

The rules are those of the Eviction API (Kubernetes: "Disruptions", "API-initiated Eviction", "Specifying a Disruption
Budget"; kubernetes pkg/registry/core/pod/storage/eviction.go):

- A pod that has not started, has ended or is being deleted needs no permission.
- A pod that two budgets cover is refused.
- A pod that is not ready needs no permission if the budget is met without it.
- Every other pod takes one of `disruptionsAllowed`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from muster.kube.objects.policy import ALWAYS_ALLOW, PodDisruptionBudget
from muster.kube.objects.selectors import IN, from_label_selector
from muster.scheduler.gangs.gang import Gang, PodRecord
from muster.scheduler.reasons import NodeReason, NodeWhy

Labels = Mapping[str, str]
_Pair = tuple[str, str]
_ANY: _Pair = ("", "")
"""Key of budgets that require no label value."""


class _Budget:
    """A budget with its parsed selector."""

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
    """All budgets. Pods are matched with budgets only when a gang is queried, so events are cheap.

    Args:
        labels_of: the labels of a pod, by UID.

    Attributes:
        known: whether all budgets have been listed. Until then no pod may be evicted.
    """

    def __init__(self, labels_of: Callable[[str], Labels]) -> None:
        self.known = False
        self._labels_of = labels_of
        self._budgets: dict[str, _Budget] = {}
        self._by_label: dict[str, dict[_Pair, dict[str, _Budget]]] = defaultdict(dict)
        self._asked: dict[str, _Asks] = {}

    def set(self, obj: PodDisruptionBudget) -> None:
        """Add or update a budget."""
        old = self._budgets.get(obj.key)
        if old is not None and old.obj.spec.selector == obj.spec.selector:
            old.count(obj)  # the common case: only the counts changed
            return
        self.remove(obj.key)
        budget = self._budgets[obj.key] = _Budget(obj)
        if not budget.selector.nothing:
            for pair in budget.pairs:
                self._by_label[obj.namespace].setdefault(pair, {})[obj.key] = budget
        self._asked.clear()

    def remove(self, key: str) -> None:
        """Remove the budget `namespace/name`."""
        budget = self._budgets.pop(key, None)
        if budget is None:
            return
        namespace = budget.obj.namespace
        by_label = self._by_label[namespace]
        for pair in budget.pairs:
            by_label.get(pair, {}).pop(key, None)
            if not by_label.get(pair, True):
                del by_label[pair]
        if not by_label:
            del self._by_label[namespace]
        self._asked.clear()

    def forget(self, gang: str) -> None:
        """Drop the gang's cached result, because its pods, their labels or their readiness changed."""
        if self._asked:
            self._asked.pop(gang, None)

    def admit(self, gang: Gang) -> bool:
        """Return whether the gang's pods may all be evicted at once."""
        if not self.known or gang.namespace not in self._by_label:
            return self.known
        asks = self._asks(gang)
        return not asks.refused and all(pods.total(budget) <= budget.allowed for budget, pods in asks.of)

    def refusal(self, gang: Gang) -> NodeReason | None:
        """Return why the gang's pods may not all be evicted at once; None if they may."""
        if not self.known:
            return NodeReason(NodeWhy.PROTECTED, "disruption budgets could not be read")
        if gang.namespace not in self._by_label:
            return None
        asks = self._asks(gang)
        if asks.refused:
            return NodeReason(NodeWhy.PROTECTED, asks.refused)
        return next((short for budget, pods in asks.of if (short := _short(budget, pods.total(budget)))), None)

    def needs(self, gang: Gang) -> Counter[str]:
        """Return how many evictions of each budget the gang needs, by `namespace/name`."""
        if gang.namespace not in self._by_label:
            return Counter()
        return Counter({budget.key: pods.total(budget) for budget, pods in self._asks(gang).of})

    def short(self, needs: Mapping[str, int]) -> NodeReason | None:
        """Return why this many evictions of each budget are not allowed at once; None if they are."""
        return next(
            (short for key, count in sorted(needs.items()) if (short := _short(self._budgets[key], count))), None
        )

    def _asks(self, gang: Gang) -> _Asks:
        found = self._asked.get(gang.key)
        if found is None:
            found = self._asked[gang.key] = self._ask(gang)
        return found

    def _ask(self, gang: Gang) -> _Asks:
        of: dict[str, tuple[_Budget, _Pods]] = {}
        refused = ""
        for uid, pod in gang.pods.items():
            covering = self._covering(gang.namespace, uid) if needs_leave(pod) else []
            if len(covering) > 1:
                names = ", ".join(sorted(budget.obj.name for budget in covering))
                refused = (
                    f"pod {pod.name} has more than one disruption budget ({names}), which evictions do not support"
                )
            for budget in covering:
                _, pods = of.setdefault(budget.key, (budget, _Pods()))
                pods.ready += pod.ready
                pods.others += not pod.ready
        return _Asks(tuple(of[key] for key in sorted(of)), refused) if of else _NOTHING

    def _covering(self, namespace: str, uid: str) -> list[_Budget]:
        by_label, labels = self._by_label[namespace], self._labels_of(uid)
        seen: dict[str, _Budget] = {}
        for pair in (_ANY, *labels.items()):
            seen.update(by_label.get(pair, {}))
        return [budget for budget in seen.values() if budget.selector.matches(labels)]


@dataclass(slots=True)
class _Pods:
    """Pods of one gang that one budget covers."""

    ready: int = 0
    others: int = 0

    def total(self, budget: _Budget) -> int:
        """Evictions that count against the budget."""
        return self.ready + (0 if budget.spares_unready else self.others)


@dataclass(frozen=True, slots=True)
class _Asks:
    """Evictions that a gang needs of each budget; `refused` if no budget could allow them."""

    of: tuple[tuple[_Budget, _Pods], ...] = ()
    refused: str = ""


_NOTHING = _Asks()


def needs_leave(pod: PodRecord) -> bool:
    """Return whether evicting the pod is a disruption: it runs and is not being deleted."""
    return bool(pod.node) and pod.started and pod.live


def _short(budget: _Budget, count: int) -> NodeReason | None:
    if count <= budget.allowed:
        return None
    key = budget.key
    if not budget.observed:
        return NodeReason(NodeWhy.PROTECTED, f"disruption budget {key} has changed and was not counted yet")
    text = f"disruption budget {key} admits {max(0, budget.allowed)} of {count} evictions"
    return NodeReason(NodeWhy.PROTECTED, text)
