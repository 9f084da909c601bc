"""The memo of evictions that gangs need of disruption budgets: used while it holds, and never kept in the snapshot."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest

from muster.scheduler.explain.why_waiting import explain
from muster.scheduler.gangs.budgets import Budgets
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.memo import recall
from muster.scheduler.persistent import JOURNALED
from tests.support.values import value_of
from tests.unit.scheduler.foreign import Foreign

LOW = {f"low-{index}": {"app": "low"} for index in range(4)}
"""Pods of low priority, each a gang of one, which one budget covers."""


def protected(allowed: int = 0, *, size: int = 4, unhealthy: str = "") -> Foreign:
    """Four nodes with four pods under one budget, and a gang of high priority that a first plan found no victims for.

    The gang needs `size` nodes, so `size` of the pods have to be evicted at once.
    """
    world = Foreign()
    world.add_nodes(*"abcd")
    for name, labels in LOW.items():
        world.add_pod(name, {"priority": 0}, labels=labels)
    world.run()
    world.set_budget("budget", {"app": "low"}, allowed, unhealthy=unhealthy)
    world.set_job("urgent", JobFacts())
    world.add_gang("urgent", size, priority=10)
    assert world.decide().actions == ()
    assert len(world.memo.budget_needs.needs) == len(LOW)
    return world


def test_decide_and_explain_leave_the_budgets_as_they_were() -> None:
    world = protected()
    world.set_unready("low-0")
    snapshot, memo = world.state.snapshot(world.now), world.memo
    before, known = value_of(snapshot.budgets), value_of(memo)
    plan = world.decide()
    assert value_of(snapshot.budgets) == before
    assert value_of(memo) == known
    said = explain(snapshot, world.gang("urgent"), now=world.now, memo=plan.memo)
    assert "ProtectedByBudget" in {count.why.value for count in said.nodes}
    assert value_of(snapshot.budgets) == before


def new_budget(world: Foreign) -> None:
    world.set_budget("other", {"app": "other"}, 1)
    world.relabel("low-0", {"app": "other"})


CHANGES: dict[str, tuple[str, Callable[[Foreign], None]]] = {
    "a label": ("", lambda world: world.relabel("low-0", {"app": "free"})),
    "readiness": ("AlwaysAllow", lambda world: world.set_unready("low-0")),
    "the selector": ("", lambda world: world.set_budget("budget", {"app": "others"}, 0)),
    "the count": ("", lambda world: world.set_budget("budget", {"app": "low"}, 1)),
    "no budget": ("", lambda world: world.remove_budget("budget")),
    "a new budget": ("", new_budget),
    "the end of a pod": ("", lambda world: world.finish("low-0")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_that_frees_a_pod_of_its_budget_shows_in_the_next_plan(change: str) -> None:
    unhealthy, apply = CHANGES[change]
    world = protected(size=1, unhealthy=unhealthy)
    apply(world)
    world.never_another_plan_without_memo()
    assert world.decide().actions != ()


def test_each_change_that_puts_a_pod_under_a_budget_shows_in_the_next_plan() -> None:
    world = protected(size=1)
    world.relabel("low-0", {"app": "free"})
    assert world.decide().actions != ()
    world.relabel("low-0", {"app": "low"})
    world.never_another_plan_without_memo()
    assert world.decide().actions == ()
    world.set_budget("budget", {"app": "none"}, 0)
    assert world.decide().actions != ()
    world.set_budget("second", {"app": "low"}, 0)
    world.never_another_plan_without_memo()
    assert world.decide().actions == ()


def test_a_pod_that_is_being_deleted_needs_no_eviction() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("job", "low", {"completionMode": "Indexed", "completions": 2, "parallelism": 2})
    for index in range(2):
        world.job_pod("low", index)
    world.run()
    world.set_budget("budget", {"batch.kubernetes.io/job-name": "low"}, 0)
    world.set_job("urgent", JobFacts())
    world.add_gang("urgent", 2, priority=10)
    for needed in (2, 1):
        world.decide()
        snapshot = world.state.snapshot(world.now)
        assert recall(snapshot, world.now, world.memo).budget_needs.of(world.gang("job.low")) == {
            "default/budget": needed
        }
        world.terminate("low-0-a")


def test_pods_without_changes_are_matched_with_budgets_once() -> None:
    world = protected()
    world.set_unready("low-2")
    matched: list[str] = []
    covering = Budgets.covering

    def counted(self: Budgets, namespace: str, uid: str) -> object:
        matched.append(world.pods[uid].name)
        return covering(self, namespace, uid)

    with patch.object(Budgets, "covering", counted):
        plan = world.decide()
        world.decide()
        explain(world.state.snapshot(world.now), world.gang("urgent"), now=world.now, memo=plan.memo)
        assert matched == ["low-2"]
        world.set_budget("other", {"app": "other"}, 1)
        assert world.decide().actions == ()
    assert sorted(matched[1:]) == sorted(LOW)


def test_memo_drops_gangs_that_are_gone() -> None:
    world = protected()
    world.remove_pod("low-0")
    world.decide()
    needs = world.memo.budget_needs.needs
    assert len(needs) == len(LOW) - 1
    assert needs.keys() <= world.state.gangs.keys()


def test_memo_that_is_too_old_for_the_journal_is_computed_again() -> None:
    world = protected(size=1)
    world.relabel("low-0", {"app": "free"})
    for _ in range(3):
        world.state.budgets.changed(["another"] * JOURNALED)
    world.never_another_plan_without_memo()
    assert world.decide().actions != ()


def test_events_are_not_recorded_while_no_budget_covers_pods() -> None:
    world = protected()
    world.remove_budget("budget")
    at = world.state.budgets.changed_gangs.end
    world.set_unready("low-0")
    world.decide()
    assert world.state.budgets.changed_gangs.end == at
    world.set_budget("budget", {"app": "low"}, 0)
    world.never_another_plan_without_memo()
