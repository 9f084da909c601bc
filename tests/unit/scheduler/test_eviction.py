"""Gangs of others, and single pods, leave by the Eviction API: whole, only if all of it may, and never without need."""

from __future__ import annotations

from typing import Any

import pytest

from muster.scheduler.explain.why_waiting import explain
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.plan import (
    Bind,
    EvictMember,
    Plan,
    RemoveMember,
    StayOn,
    TellToLeave,
    TryEviction,
    WritePlacement,
)
from tests.unit.scheduler.foreign import Foreign

REFUSAL = "Cannot evict pod as it would violate the pod's disruption budget"


def add_job(world: Foreign, name: str, size: int, *, priority: int = 0, **labels: str) -> list[str]:
    """An Indexed Job of others with all its pods; returns their names."""
    spec = {"completionMode": "Indexed", "completions": size, "parallelism": size}
    world.set_object("job", name, spec)
    return [add_pod(world, name, index, priority=priority, **labels) for index in range(size)]


def add_pod(world: Foreign, name: str, index: int, suffix: str = "a", *, priority: int = 0, **labels: str) -> str:
    index_label = {"batch.kubernetes.io/job-completion-index": str(index), "job": name}
    owners = [world.owner("job", name)]
    return world.add_pod(
        f"{name}-{index}-{suffix}", {"priority": priority}, labels=index_label | labels, owners=owners
    ).name


def a_full_cluster(*, size: int = 4) -> Foreign:
    """Four nodes, all of them taken by a Job of priority 0."""
    world = Foreign()
    world.add_nodes(*"abcd")
    add_job(world, "low", size)
    world.run()
    assert len(world.ran_on()) == size
    world.now += 100
    return world


def add_urgent(world: Foreign, size: int = 2, **spec: Any) -> None:
    world.set_job("urgent", JobFacts())
    world.add_gang("urgent", size, priority=10, **spec)


def kinds(plan: Plan) -> set[type]:
    return {type(action) for action in plan.actions}


def why(world: Foreign, gang: str = "urgent") -> set[str]:
    """The typed reasons of nodes that `muster explain` gives."""
    snapshot = world.state.snapshot()
    return {count.why.value for count in explain(snapshot, world.gang(gang), now=world.now).nodes}


def step(world: Foreign) -> Plan:
    """One plan, carried out."""
    plan = world.decide()
    for action in plan.actions:
        world.carry_out(action)
    return plan


def phase(world: Foreign, placement: str) -> str:
    found = world.placements.get(f"default/{placement}")
    return found.status.phase if found is not None else ""


def test_first_the_dry_run_then_the_plan_then_all_are_evicted_then_the_nodes_are_bound() -> None:
    world = a_full_cluster()
    world.lingering = {"low-3-a"}
    add_urgent(world)
    (trial,) = step(world).actions
    assert isinstance(trial, TryEviction)
    assert [name for name, _ in trial.pods] == [f"low-{index}-a" for index in range(4)]
    (write,) = step(world).actions
    assert isinstance(write, WritePlacement)
    assert write.placement.spec.preempting
    (tell,) = step(world).actions
    assert isinstance(tell, TellToLeave)
    evictions = step(world).actions
    assert [action.pod for action in evictions if isinstance(action, EvictMember)] == [f"low-{i}-a" for i in range(4)]
    assert len(evictions) == 4
    plan = world.run()
    assert plan.waiting[world.gang("job.low").key].why == "Leaving"
    assert len(world.nodes_of("urgent")) in (0, 2)
    assert world.find("low-3-a").spec.node_name not in world.nodes_of("urgent").values()
    world.remove_pod("low-3-a")
    world.run()
    assert len(world.nodes_of("urgent")) == 2
    assert phase(world, "job.low") == ""


def test_no_node_is_bound_before_the_pods_that_leave_it_are_gone() -> None:
    world = a_full_cluster()
    world.lingering = {f"low-{index}-a" for index in range(4)}
    add_urgent(world, 4)
    world.run()
    for index in range(4):
        assert world.nodes_of("urgent") == {}
        world.remove_pod(f"low-{index}-a")
        world.run()
    assert len(world.nodes_of("urgent")) == 4


def test_evicted_gang_waits_again_and_starts_when_there_is_room() -> None:
    world = a_full_cluster()
    add_urgent(world)
    world.run()
    for index in range(4):
        add_pod(world, "low", index, "b")
    world.run()
    assert len(world.nodes_of("urgent")) == 2
    world.remove_gang("urgent")
    world.set_job("urgent", JobFacts(ended="Succeeded"))
    world.run()
    assert {name for name in world.ran_on() if name.startswith("low")} == {f"low-{index}-b" for index in range(4)}


def test_gang_with_a_refused_dry_run_is_skipped_for_a_while() -> None:
    world = a_full_cluster()
    world.refused = {"low-2-a": REFUSAL}
    add_urgent(world)
    plan = world.run()
    assert "urgent" not in {placement.spec.gang for placement in world.placements.values()}
    assert len(world.ran_on()) == 4
    assert plan.waiting[world.gang("urgent").key].why == "NotEnoughNodes"
    assert "EvictionRefused" in why(world)
    world.refused.clear()
    world.now += 59
    assert step(world).actions == ()
    world.now += 2
    world.run()
    assert len(world.nodes_of("urgent")) == 2


def test_where_one_gang_is_refused_another_leaves() -> None:
    world = Foreign()
    world.add_nodes(*"abcd")
    for name in ("left", "right"):
        add_job(world, name, 2)
    world.run()
    world.now += 100
    world.refused = {"left-0-a": REFUSAL}
    add_urgent(world)
    world.run()
    assert set(world.ran_on()) == {"left-0-a", "left-1-a", "urgent-0-0", "urgent-1-0"}


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        ({"allowed": 3}, "ProtectedByBudget"),
        ({"allowed": 0}, "ProtectedByBudget"),
        ({"allowed": 9, "observedGeneration": 0}, "ProtectedByBudget"),
        ({"allowed": 9, "second": 9}, "ProtectedByBudget"),
        ({"allowed": 4}, ""),
        ({"allowed": 0, "labels": {"job": "other"}}, ""),
    ],
)
def test_a_gang_that_its_budgets_do_not_let_go_whole_is_not_even_tried(status: dict[str, Any], reason: str) -> None:
    world = a_full_cluster()
    second = status.pop("second", None)
    world.set_budget("budget", status.pop("labels", {"job": "low"}), **status)
    if second is not None:
        world.set_budget("second", {"batch.kubernetes.io/job-completion-index": "1"}, second)
    add_urgent(world)
    actions = world.decide().actions
    if reason:
        assert actions == ()
        assert reason in why(world)
        for name in ("budget", "second") if second is not None else ("budget",):
            world.remove_budget(name)
    world.run()
    assert len(world.nodes_of("urgent")) == 2


def test_no_pod_is_evicted_while_budgets_are_unknown() -> None:
    world = a_full_cluster()
    world.state.budgets.known = False
    add_urgent(world)
    assert world.decide().actions == ()
    assert "ProtectedByBudget" in why(world)


def test_pods_that_are_not_ready_need_no_leave_where_the_eviction_api_says_so() -> None:
    for policy, healthy, admitted in (("AlwaysAllow", 0, True), ("IfHealthyBudget", 3, True), ("", 2, False)):
        world = a_full_cluster()
        status = {"currentHealthy": healthy, "desiredHealthy": 3}
        world.set_budget("budget", {"job": "low"}, 3, unhealthy=policy, **status)
        world.set_unready("low-0-a")
        add_urgent(world)
        assert (world.decide().actions != ()) is admitted, (policy, healthy)


@pytest.mark.parametrize(("allowed", "leave"), [(4, "bc"), (3, "ac"), (1, "")])
def test_gangs_that_share_a_budget_leave_together_only_where_it_admits_all_of_them(allowed: int, leave: str) -> None:
    """The two that began last lose least; the budget is theirs."""
    world = Foreign()
    world.add_nodes(*"abcdef")
    for name, app in (("a", "own"), ("b", "shared"), ("c", "shared")):
        add_job(world, name, 2, app=app)
        world.run()
        world.now += 100
    before = set(world.ran_on())
    world.set_budget("budget", {"app": "shared"}, allowed)
    add_urgent(world, 4)
    world.run()
    assert {name[0] for name in before - set(world.ran_on())} == set(leave)


@pytest.mark.parametrize("why_not", ["equal priority", "never", "daemon set", "static pod", "not enough"])
def test_no_pod_is_evicted_if_forbidden_or_useless(why_not: str) -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    daemons = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "d", "controller": True}
    for number in range(2):
        world.add_pod(
            f"pod-{number}",
            {"priority": 10 if why_not == "equal priority" else 0},
            owners=[daemons] if why_not == "daemon set" else [],
            annotations={"kubernetes.io/config.mirror": "x"} if why_not == "static pod" else {},
        )
    world.run()
    size = 3 if why_not == "not enough" else 2
    add_urgent(world, size, **({"preemptionPolicy": "Never"} if why_not == "never" else {}))
    assert world.decide().actions == ()
    world.add_pod("single", {"priority": 10, **({"preemptionPolicy": "Never"} if why_not == "never" else {})})
    if why_not != "not enough":
        assert world.decide().actions == ()


def test_foreign_gang_loses_all_work_since_its_start() -> None:
    """A job that saved a moment ago leaves before a Job that started after it, whose work cannot be saved."""
    world = Foreign()
    world.add_nodes("a", "b", "c")
    world.set_job("saves", JobFacts())
    world.add_gang("saves", 1)
    world.run()
    world.now += 1000
    add_job(world, "older", 1)
    world.run()
    world.now += 100
    add_job(world, "younger", 1)
    world.run()
    world.now += 50
    world.set_job("saves", JobFacts(saved_at=world.now - 1))
    add_urgent(world, 1)
    world.run()
    assert phase(world, "saves") == "Preempting"
    world.remove_gang("saves")
    world.run()
    world.set_job("more", JobFacts())
    world.add_gang("more", 1, priority=10)
    world.run()
    assert set(world.ran_on()) == {"urgent-0-0", "older-0-a", "more-0-0"}


def test_a_refusal_half_way_is_tried_again_and_then_the_gang_stays_and_is_mended() -> None:
    world = a_full_cluster()
    add_urgent(world)
    for _ in range(3):
        step(world)
    assert phase(world, "job.low") == "Preempting"
    world.refused = {"low-1-a": REFUSAL, "low-2-a": REFUSAL}
    for second in range(150):
        step(world)
        staying = {node for name, node in world.ran_on().items() if name.startswith("low")}
        assert not staying & set(world.nodes_of("urgent").values())
        assert (phase(world, "job.low"), second) == ("Preempting", second)
        world.now += 1.0
    (stay,) = [action for action in step(world).actions if isinstance(action, StayOn)]
    assert REFUSAL in stay.reason
    world.run()
    assert phase(world, "job.low") == "Bound"
    assert world.nodes_of("urgent") == {}
    for index in (0, 3):
        add_pod(world, "low", index, "b")
    world.run()
    assert set(world.ran_on()) == {"low-0-b", "low-1-a", "low-2-a", "low-3-b"}
    world.refused.clear()
    world.now += 61
    world.run()
    assert len(world.nodes_of("urgent")) == 2


@pytest.mark.parametrize("done", range(1, 6))
def test_a_new_leader_in_the_middle_finishes_what_was_begun(done: int) -> None:
    world = a_full_cluster()
    world.lingering = {"low-3-a"}
    add_urgent(world, 4)
    for _ in range(done):
        step(world)
    world.forget_all()
    world.run()
    assert {name for name in world.ran_on() if name.startswith("low")} <= {"low-3-a"}
    world.remove_pod("low-3-a")
    world.forget_all()
    world.run()
    assert len(world.nodes_of("urgent")) == 4


def test_new_leader_evicts_no_more_pods_if_budgets_changed_before_the_notice() -> None:
    world = a_full_cluster()
    add_urgent(world)
    for _ in range(2):
        step(world)
    assert "default/urgent" in world.placements
    world.set_budget("budget", {"job": "low"}, 1)
    world.forget_all()
    world.run()
    assert len(world.ran_on()) == 4
    assert "default/urgent" not in world.placements


def test_a_new_leader_tries_before_it_gives_up_what_an_old_one_could_not_finish_in_time() -> None:
    world = a_full_cluster()
    add_urgent(world)
    for _ in range(3):
        step(world)
    world.refused = {"low-1-a": REFUSAL}
    step(world)
    assert len(world.ran_on()) == 1
    world.now += 200  # no process led
    world.refused.clear()
    world.forget_all()
    world.run()
    assert len(world.nodes_of("urgent")) == 2


def test_a_single_pod_has_others_leave_too_and_its_placement_goes_when_it_is_bound() -> None:
    world = a_full_cluster()
    world.lingering = {f"low-{index}-a" for index in range(4)}
    world.add_pod("urgent", {"priority": 10})
    world.run()
    placement = world.placements["default/pod.urgent"]
    assert placement.spec.preempting
    (owner,) = placement.metadata.owner_references
    assert (owner.kind, owner.name, owner.uid) == ("Pod", "urgent", world.find("urgent").uid)
    world.forget_all()
    world.add_pod("filler", {"priority": 20, "preemptionPolicy": "Never"})
    node = placement.spec.slots[0].node
    gone = next(name for name, on in world.ran_on().items() if on == node)
    world.remove_pod(gone)
    world.run()
    assert world.find("urgent").spec.node_name == node, "no other gang gets the node that was freed for it"
    assert "default/pod.urgent" not in world.placements


def test_single_pods_of_lower_priority_leave_the_latest_first() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    for number in range(3):
        world.add_pod(f"pod-{number}", {"priority": 0})
        world.run()
        world.now += 100
    add_urgent(world)
    plans = [step(world) for _ in range(3)]
    assert [kinds(plan) for plan in plans] == [{TryEviction}, {WritePlacement}, {EvictMember}]
    world.run()
    assert len(world.nodes_of("urgent")) == 2
    assert "pod-0" in world.ran_on()


def test_a_single_pod_that_is_refused_after_its_dry_run_is_given_up_for_another() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    for number in range(2):
        world.add_pod(f"pod-{number}", {"priority": 0})
        world.run()
        world.now += 100
    world.add_pod("urgent", {"priority": 10})
    for _ in range(2):
        step(world)
    world.refused = {"pod-1": REFUSAL}
    for _ in range(20):
        step(world)
        world.now += 1.0
    assert set(world.ran_on()) == {"pod-1", "urgent"}


def test_placement_of_a_missing_pod_is_deleted_and_no_other_pod_is_evicted() -> None:
    world = a_full_cluster()
    world.add_pod("urgent", {"priority": 10})
    for _ in range(2):
        step(world)
    assert "default/pod.urgent" in world.placements
    world.remove_pod("urgent")
    world.run()
    assert "default/pod.urgent" not in world.placements
    assert len(world.ran_on()) == 4


def test_gangs_that_lost_nodes_yield_by_eviction_only() -> None:
    world = Foreign()
    world.add_nodes(*"abcd")
    for name in ("early", "late"):
        add_job(world, name, 2)
        world.run()
        world.now += 1
    world.set_budget("budget", {"job": "late"}, 0)
    for name in ("early", "late"):
        lost = world.ran_on()[f"{name}-0-a"]
        world.remove_node(lost)
        world.remove_pod(f"{name}-0-a")
        add_pod(world, name, 0, "b")
    plan = world.run()
    assert set(world.ran_on()) == {"early-1-a", "late-1-a"}
    world.remove_budget("budget")
    plans = [plan]
    while plans[-1].actions or len(plans) == 1:
        plans.append(step(world))
    assert not any(RemoveMember in kinds(plan) for plan in plans)
    assert set(world.ran_on()) == {"early-0-b", "early-1-a"}


def test_a_gang_of_our_label_whose_job_is_not_known_yet_is_never_evicted() -> None:
    world = Foreign()
    world.add_nodes("a")
    owner = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "name": "j",
        "uid": "uid-j",
        "controller": True,
    }
    world.add_pod(
        "j-0-0",
        {"priority": 0},
        labels={"muster.dev/gang": "j", "muster.dev/slot": "0"},
        annotations={"muster.dev/gang-size": "1", "muster.dev/gang-uid": "uid-j"},
        owners=[owner],
    )
    world.run()
    add_urgent(world, 1)
    assert not any(isinstance(action, TryEviction | EvictMember | Bind) for action in world.decide().actions)


def test_where_very_many_might_leave_and_may_not_they_are_looked_at_again_soon_not_at_each_plan() -> None:
    world = Foreign()
    world.add_nodes(*(f"n{number}" for number in range(300)))
    for number in range(300):
        world.add_pod(f"pod-{number}", {"priority": 0}, labels={"app": "low"})
    world.run()
    world.now += 100
    world.set_budget("budget", {"app": "low"}, 0)
    add_urgent(world)
    plan = world.decide()
    assert plan.actions == ()
    assert "ProtectedByBudget" in why(world)
    world.set_budget("budget", {"app": "low"}, 300)
    assert plan.wake_at is not None
    assert plan.wake_at <= world.now + 5.0
    world.now = plan.wake_at
    world.run()
    assert len(world.nodes_of("urgent")) == 2


def test_of_very_many_those_that_lose_least_leave() -> None:
    world = Foreign()
    world.add_nodes(*(f"n{number}" for number in range(400)))
    for number in range(400):
        world.add_pod(f"pod-{number}", {"priority": 5 if number % 2 else 0})
        if number % 40 == 39:
            world.run()
            world.now += 100
    before = set(world.ran_on())
    add_urgent(world, 20)
    world.run()
    assert len(world.nodes_of("urgent")) == 20
    assert before - set(world.ran_on()) == {f"pod-{number}" for number in range(360, 400, 2)}
