"""Evictions that a gang needs of each disruption budget, and whether the budgets allow all of them at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from muster.scheduler.gangs.budgets import Budget, Budgets
from muster.scheduler.gangs.gang import Gang, PodRecord
from muster.scheduler.reasons import NodeReason, NodeWhy


class _Covered(msgspec.Struct, frozen=True):
    """Pods of one gang that one budget covers: those that are ready, and the others."""

    key: str
    ready: int
    others: int

    def evictions(self, budget: Budget) -> int:
        """Return the evictions that count against the budget."""
        return self.ready + (0 if budget.spares_unready else self.others)


class _Needs(msgspec.Struct, frozen=True):
    """The budgets that cover a gang's pods, by key; `refused` if no budget could allow the evictions."""

    of: tuple[_Covered, ...] = ()
    refused: str = ""


_NONE = _Needs()


class KnownBudgetNeeds(msgspec.Struct, frozen=True):
    """Memo of `BudgetNeeds`, by gang; `at` is the position in the journal of the budgets."""

    at: int = 0
    needs: Mapping[str, _Needs] = {}


NO_BUDGET_NEEDS = KnownBudgetNeeds()


class BudgetNeeds:
    """Matches the pods of gangs with budgets, once until the gang's pods or the selectors change.

    Args:
        budgets: all budgets.
        known: needs in an earlier snapshot.
    """

    def __init__(self, budgets: Budgets, known: KnownBudgetNeeds) -> None:
        self._budgets, self._before = budgets, known
        self._used = False
        self._needs: dict[str, _Needs] = {}

    @property
    def known(self) -> KnownBudgetNeeds:
        """The needs, for the next snapshot. This object must not be used afterwards."""
        return KnownBudgetNeeds(self._budgets.changed_gangs.end, self._needs) if self._used else self._before

    def admit(self, gang: Gang) -> bool:
        """Return whether the gang's pods may all be evicted at once."""
        budgets = self._budgets
        if not budgets.known or not budgets.any_in(gang.namespace):
            return budgets.known
        needs = self._find(gang)
        if needs.refused:
            return False
        for pods in needs.of:  # a loop, because `all` takes longer and each search asks this of all candidates
            budget = budgets.by_key[pods.key]
            if pods.evictions(budget) > budget.allowed:
                return False
        return True

    def refusal(self, gang: Gang) -> NodeReason | None:
        """Return why the gang's pods may not all be evicted at once; None if they may."""
        if not self._budgets.known:
            return NodeReason(NodeWhy.PROTECTED, "disruption budgets could not be read")
        if not self._budgets.any_in(gang.namespace):
            return None
        needs = self._find(gang)
        if needs.refused:
            return NodeReason(NodeWhy.PROTECTED, needs.refused)
        for pods in needs.of:
            short = _short(self._budgets.by_key[pods.key], pods)
            if short is not None:
                return short
        return None

    def of(self, gang: Gang) -> Counter[str]:
        """Return how many evictions of each budget the gang needs, by `namespace/name`."""
        if not self._budgets.any_in(gang.namespace):
            return Counter()
        by_key = self._budgets.by_key
        return Counter({pods.key: pods.evictions(by_key[pods.key]) for pods in self._find(gang).of})

    def allowed(self, key: str) -> int:
        """Return how many evictions the budget `namespace/name` allows now."""
        return self._budgets.by_key[key].allowed

    def _find(self, gang: Gang) -> _Needs:
        if not self._used:
            self._load()
        found = self._needs.get(gang.key)
        if found is None:
            found = self._needs[gang.key] = self._count(gang)
        return found

    def _load(self) -> None:
        """Copy what is known of gangs without changes; a gang that is gone has changed."""
        self._used = True
        changed = self._budgets.changed_gangs.since(self._before.at)
        if changed is None:
            return
        self._needs = dict(self._before.needs)
        for key in changed:
            self._needs.pop(key, None)

    def _count(self, gang: Gang) -> _Needs:
        counts: dict[str, list[int]] = {}
        refused = ""
        for uid, pod in gang.pods.items():
            covering = self._budgets.covering(gang.namespace, uid) if _needs_permission(pod) else []
            if len(covering) > 1:
                names = ", ".join(sorted(budget.obj.name for budget in covering))
                refused = (
                    f"pod {pod.name} has more than one disruption budget ({names}), which evictions do not support"
                )
            for budget in covering:
                counts.setdefault(budget.key, [0, 0])[0 if pod.ready else 1] += 1
        covered = tuple(_Covered(key, ready, others) for key, (ready, others) in sorted(counts.items()))
        return _Needs(covered, refused) if covered else _NONE


def _needs_permission(pod: PodRecord) -> bool:
    """Return whether evicting the pod is a disruption: it runs and is not being deleted."""
    return bool(pod.node) and pod.started and pod.live


def _short(budget: Budget, pods: _Covered) -> NodeReason | None:
    count = pods.evictions(budget)
    if count <= budget.allowed:
        return None
    key = budget.key
    if not budget.observed:
        return NodeReason(NodeWhy.PROTECTED, f"disruption budget {key} has changed and was not counted yet")
    text = f"disruption budget {key} admits {max(0, budget.allowed)} of {count} evictions"
    return NodeReason(NodeWhy.PROTECTED, text)
