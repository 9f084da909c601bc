"""Pod disruption budgets: which of them cover a gang's pods, and whether they admit that all of these go at once.

The rules are those of the Eviction API (Kubernetes: "Disruptions", "API-initiated Eviction", "Specifying a Disruption
Budget"; kubernetes pkg/registry/core/pod/storage/eviction.go): pods that have not started, have ended or are being
deleted need nobody's leave; a pod that two budgets cover is refused; a pod that is not ready needs none where the
budget is met without it; all others take one of `disruptionsAllowed` each.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from muster.kube.policy import ALWAYS_ALLOW, PodDisruptionBudget
from muster.kube.selectors import IN, from_label_selector
from muster.scheduler.gangs.gang import Gang, PodRecord
from muster.scheduler.reasons import NodeReason, NodeWhy

Labels = Mapping[str, str]
_Pair = tuple[str, str]
_ANY: _Pair = ("", "")
"""Where budgets are found that demand no label value."""


class _Budget:
    """A budget, its selector read once."""

    __slots__ = ("allowed", "key", "obj", "observed", "selector", "spares_unready")

    def __init__(self, obj: PodDisruptionBudget) -> None:
        self.key = obj.key
        self.selector = from_label_selector(obj.spec.selector)
        self.count(obj)

    def count(self, obj: PodDisruptionBudget) -> None:
        """Take over how many may go; whether that is about the present spec; whether pods not ready need no leave."""
        self.obj, status = obj, obj.status
        self.observed = status.observed_generation >= obj.metadata.generation
        self.allowed = status.disruptions_allowed if self.observed else 0
        always = obj.spec.unhealthy_pod_eviction_policy == ALWAYS_ALLOW
        self.spares_unready = always or 0 < status.desired_healthy <= status.current_healthy

    @property
    def pairs(self) -> tuple[_Pair, ...]:
        """Labels of which a pod has one, where the budget covers it."""
        for requirement in self.selector.requirements:
            if requirement.operator == IN:
                return tuple((requirement.key, value) for value in requirement.values)
        return (_ANY,)


class Budgets:
    """All budgets. An event costs what it is about: pods are compared with budgets when a gang is asked for.

    Args:
        labels_of: the labels of a pod, by UID.

    Attributes:
        known: whether all budgets there are have been heard of. Until then nobody may be evicted.
    """

    def __init__(self, labels_of: Callable[[str], Labels]) -> None:
        self.known = False
        self._labels_of = labels_of
        self._budgets: dict[str, _Budget] = {}
        self._by_label: dict[str, dict[_Pair, dict[str, _Budget]]] = defaultdict(dict)
        self._asked: dict[str, _Asks] = {}

    def set(self, obj: PodDisruptionBudget) -> None:
        """A budget exists, and says this."""
        old = self._budgets.get(obj.key)
        if old is not None and old.obj.spec.selector == obj.spec.selector:
            old.count(obj)  # as most often: only that is another
            return
        self.remove(obj.key)
        budget = self._budgets[obj.key] = _Budget(obj)
        if not budget.selector.nothing:
            for pair in budget.pairs:
                self._by_label[obj.namespace].setdefault(pair, {})[obj.key] = budget
        self._asked.clear()

    def remove(self, key: str) -> None:
        """The budget `namespace/name` is gone."""
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
        """Pods of the gang came or went, have other labels, or have become ready or no longer are."""
        if self._asked:
            self._asked.pop(gang, None)

    def admit(self, gang: Gang) -> bool:
        """Whether the gang's pods may all be evicted at once."""
        if not self.known or gang.namespace not in self._by_label:
            return self.known
        asks = self._asks(gang)
        return not asks.refused and all(pods.total(budget) <= budget.allowed for budget, pods in asks.of)

    def refusal(self, gang: Gang) -> NodeReason | None:
        """Return why the gang's pods may not all be evicted at once; None where they may."""
        if not self.known:
            return NodeReason(NodeWhy.PROTECTED, "disruption budgets could not be read")
        if gang.namespace not in self._by_label:
            return None
        asks = self._asks(gang)
        if asks.refused:
            return NodeReason(NodeWhy.PROTECTED, asks.refused)
        return next((short for budget, pods in asks.of if (short := _short(budget, pods.total(budget)))), None)

    def needs(self, gang: Gang) -> Counter[str]:
        """Return how many evictions the gang's leaving takes of each budget, by `namespace/name`."""
        if gang.namespace not in self._by_label:
            return Counter()
        return Counter({budget.key: pods.total(budget) for budget, pods in self._asks(gang).of})

    def short(self, needs: Mapping[str, int]) -> NodeReason | None:
        """Return why so many evictions of each budget are not admitted at once; None where they are."""
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
        """Evictions that count."""
        return self.ready + (0 if budget.spares_unready else self.others)


@dataclass(frozen=True, slots=True)
class _Asks:
    """What evicting a gang asks of budgets; `refused` where no budget could admit it."""

    of: tuple[tuple[_Budget, _Pods], ...] = ()
    refused: str = ""


_NOTHING = _Asks()


def needs_leave(pod: PodRecord) -> bool:
    """Whether evicting the pod is a disruption: it runs, and nobody deletes it already."""
    return bool(pod.node) and pod.started and pod.live


def _short(budget: _Budget, count: int) -> NodeReason | None:
    if count <= budget.allowed:
        return None
    key = budget.key
    if not budget.observed:
        return NodeReason(NodeWhy.PROTECTED, f"disruption budget {key} has changed and was not counted yet")
    text = f"disruption budget {key} admits {max(0, budget.allowed)} of {count} evictions"
    return NodeReason(NodeWhy.PROTECTED, text)
