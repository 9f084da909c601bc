"""Preempted gangs: asked by their Placement, gone with their last pod, and only if it helps."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.plan import Bind, RemoveMember, TellToLeave, WritePlacement
from tests.unit.scheduler.world import World, node, reason_of

BALLOON = {"muster.dev/balloon": "true"}
BORROWED = {"muster.dev/borrowed": "true"}


def add_job(world: World, name: str, size: int, *, facts: JobFacts | None = None, **spec: Any) -> None:
    """A gang whose TrainingJob exists, so that a user listens."""
    world.state.jobs.set(f"uid-{name}", facts or JobFacts())
    world.add_gang(name, size, **spec)


def a_full_cluster() -> World:
    """Four nodes, all of them taken by two gangs of priority 0."""
    world = World()
    world.add_nodes(*"abcd")
    add_job(world, "old", 2)
    add_job(world, "young", 2)
    world.run()
    world.now += 100
    return world


def phase(world: World, gang: str) -> str:
    placement = world.placements.get(f"default/{gang}")
    return placement.status.phase if placement is not None else ""


def leave(world: World, gang: str) -> None:
    """The job's controller obeys: pods are deleted, later they are gone, then it recreates them."""
    for pod in [pod for pod in world.pods.values() if pod.metadata.labels.get("muster.dev/gang") == gang]:
        world.terminate(pod.name)


def test_plan_is_written_before_victims_are_notified_and_pods_bound() -> None:
    world = a_full_cluster()
    add_job(world, "urgent", 2, priority=10)
    (write,) = world.decide().actions
    assert isinstance(write, WritePlacement)
    assert write.placement.spec.preempting
    world.carry_out(write)
    (tell,) = world.decide().actions
    assert isinstance(tell, TellToLeave)
    assert tell.reason == "Preempted"
    assert "default/urgent (priority 10)" in tell.message
    world.carry_out(tell)
    victim = tell.placement.name
    plan = world.decide()
    assert plan.actions == ()
    assert reason_of(plan, world, "urgent") == "MakingRoom"
    assert reason_of(plan, world, victim) == "Leaving"
    leave(world, victim)
    assert world.decide().actions == ()  # pods that end still take their nodes
    world.remove_pod(f"{victim}-0-0")
    assert not any(isinstance(action, Bind) for action in world.decide().actions)
    world.remove_pod(f"{victim}-1-0")
    world.run()
    assert len(world.nodes_of("urgent")) == 2
    assert phase(world, "urgent") == "Bound"
    assert not world.placements["default/urgent"].spec.preempting
    assert f"default/{victim}" not in world.placements


def test_a_filler_never_gets_a_node_that_was_freed_for_another() -> None:
    world = a_full_cluster()
    add_job(world, "urgent", 4, priority=10)
    world.run()
    assert {phase(world, "old"), phase(world, "young")} == {"Preempting"}
    world.remove_gang("old")
    world.add_gang("filler", 1, gpus=1)
    world.add_gang("higher", 1, priority=99, preemptionPolicy="Never")
    world.run()
    assert world.nodes_of("filler") == {}
    assert world.nodes_of("higher") == {}
    world.remove_gang("young")
    world.run()
    assert len(world.nodes_of("urgent")) == 4


def test_preempted_gang_keeps_its_place_in_the_queue_and_is_placed_again() -> None:
    world = a_full_cluster()
    add_job(world, "urgent", 2, priority=10)
    world.run()
    (victim,) = [name for name in ("old", "young") if phase(world, name) == "Preempting"]
    world.remove_gang(victim)
    world.run()
    world.add_gang(victim, 2, attempt=1)
    plan = world.run()
    assert reason_of(plan, world, victim) == "NotEnoughNodes"
    world.remove_gang("urgent")
    world.state.jobs.set("uid-urgent", JobFacts(ended="Succeeded"))
    world.run()
    assert len(world.nodes_of(victim)) == 2


@pytest.mark.parametrize("why", ["equal priority", "never", "not enough", "still being bound"])
def test_no_gang_is_preempted_if_forbidden_or_useless(why: str) -> None:
    world = World()
    world.add_nodes(*"abcd")
    world.add_nodes("e", labels={"zone": "other"})
    add_job(world, "running", 4)
    if why == "still being bound":
        world.carry_out(world.decide().actions[0])
        world.carry_out(world.decide().actions[0])
    else:
        world.run()
    if why == "not enough":
        add_job(world, "pinned", 1, priority=10, nodeSelector={"zone": "other"})
        world.run()
    options: dict[str, Any] = {"priority": 0 if why == "equal priority" else 10}
    if why == "never":
        options["preemptionPolicy"] = "Never"
    add_job(world, "urgent", 5 if why == "not enough" else 2, **options)
    actions = world.decide().actions
    assert not any(isinstance(action, TellToLeave) for action in actions)
    assert not any(isinstance(action, WritePlacement) and action.placement.spec.preempting for action in actions)


def test_a_job_leaves_for_a_pod_without_a_gang() -> None:
    world = a_full_cluster()
    world.add_pod("urgent", {"priority": 10})
    world.run()
    (victim,) = [name for name in ("old", "young") if phase(world, name) == "Preempting"]
    assert world.find("urgent").spec.node_name == ""
    world.remove_gang(victim)
    world.run()
    assert world.find("urgent").spec.node_name
    assert "default/pod.urgent" not in world.placements


def test_balloons_leave_first_and_at_once() -> None:
    world = World()
    world.add_nodes("a", "b", "c")
    add_job(world, "running", 1)
    for number in range(2):
        world.add_pod(f"balloon-{number}", {"priority": -10}, labels=BALLOON)
    world.run()
    add_job(world, "next", 2)
    world.carry_out(world.decide().actions[0])
    actions = world.decide().actions
    assert sorted(action.pod for action in actions if isinstance(action, RemoveMember)) == ["balloon-0", "balloon-1"]
    assert {action.why for action in actions if isinstance(action, RemoveMember)} == {"PreemptionByScheduler"}
    world.run()
    assert len(world.nodes_of("next")) == 2
    assert phase(world, "running") == "Bound"


def test_borrowers_leave_before_others_and_those_that_lose_least_before_those_that_lose_more() -> None:
    world = World()
    world.add_nodes(*"abcd")
    for name, facts, priority, labels in (
        ("low", JobFacts(), -5, {}),
        ("saved", JobFacts(saved_at=world.now + 90), 0, {}),
        ("unsaved", JobFacts(), 0, {}),
        ("borrower", JobFacts(), 0, BORROWED),
    ):
        world.state.jobs.set(f"uid-{name}", facts)
        world.add_pod(
            f"{name}-0-0",
            {"priority": priority},
            labels={"muster.dev/gang": name, "muster.dev/slot": "0", **labels},
            annotations={"muster.dev/gang-size": "1", "muster.dev/gang-uid": f"uid-{name}"},
        )
    world.run()
    world.now += 100
    left = []
    for number in range(4):
        add_job(world, f"urgent-{number}", 1, priority=10)
        world.run()
        (victim,) = [name for name in ("low", "saved", "unsaved", "borrower") if phase(world, name) == "Preempting"]
        left.append(victim)
        world.remove_gang(victim)
        world.run()
    assert left == ["borrower", "low", "saved", "unsaved"]


def test_a_victim_whose_controller_is_dead_is_deleted_after_its_grace() -> None:
    world = a_full_cluster()
    world.state.jobs.set("uid-old", JobFacts(grace_s=10.0))
    world.state.jobs.set("uid-young", JobFacts(grace_s=10.0))
    add_job(world, "urgent", 4, priority=10)
    world.run()
    assert world.decide().wake_at == world.now + 2 * 10 + 30
    world.now += 49
    assert world.decide().actions == ()
    world.now += 2
    removed = [action for action in world.decide().actions if isinstance(action, RemoveMember)]
    assert len(removed) == 4
    world.run()
    assert len(world.nodes_of("urgent")) == 4


def test_a_victim_that_never_goes_does_not_block_for_ever() -> None:
    world = a_full_cluster()
    add_job(world, "urgent", 2, priority=10)
    world.run()
    (victim,) = [name for name in ("old", "young") if phase(world, name) == "Preempting"]
    leave(world, victim)  # its kubelet hangs: the pods are never confirmed gone
    world.now += 1000
    world.run()
    other = "young" if victim == "old" else "old"
    assert phase(world, other) == "Preempting"
    world.remove_gang(other)
    world.run()
    assert len(world.nodes_of("urgent")) == 2


@pytest.mark.parametrize("reported", [False, True])
def test_new_leader_continues_from_the_placement(reported: bool) -> None:
    world = a_full_cluster()
    add_job(world, "urgent", 4, priority=10)
    world.carry_out(world.decide().actions[0])
    if reported:
        world.carry_out(world.decide().actions[0])
    world.forget_all()
    for name in ("old", "young", "urgent"):
        world.state.jobs.set(f"uid-{name}", JobFacts())
    world.run()
    assert {phase(world, "old"), phase(world, "young")} == {"Preempting"}
    for name in ("old", "young"):
        world.remove_gang(name)
    world.forget_all()
    world.run()
    assert len(world.nodes_of("urgent")) == 4


def lose(world: World, name: str) -> None:
    """The node is gone, and the controllers make what was on it again."""
    pods = [pod for pod in world.pods.values() if pod.spec.node_name == name]
    world.remove_node(name)
    for pod in pods:
        meta = pod.metadata
        world.remove_pod(pod.name)
        size = int(meta.annotations["muster.dev/gang-size"])
        world.add_member(meta.labels["muster.dev/gang"], int(meta.labels["muster.dev/slot"]), size, attempt=1)


def test_of_two_gangs_that_lost_nodes_without_spares_the_later_one_yields() -> None:
    world = World()
    world.add_nodes(*"abcdef")
    add_job(world, "early", 3)
    add_job(world, "late", 3)
    world.run()
    kept = world.nodes_of("early")
    lose(world, world.slots_of("early")[0])
    lose(world, world.slots_of("late")[1])
    plan = world.run()
    assert phase(world, "late") == "Preempting"
    placement = world.placements["default/late"]
    assert placement.status.reason == "Yielded"
    assert reason_of(plan, world, "early") == "MakingRoom"
    world.remove_gang("late")
    world.run()
    after = world.nodes_of("early")
    assert len(after) == 3
    assert {slot: after[slot] for slot in (1, 2)} == {slot: kept[slot] for slot in (1, 2)}
    world.add_gang("late", 3, attempt=2)
    assert reason_of(world.run(), world, "late") == "MoreThanTheCluster" or world.nodes_of("late") == {}


def test_a_gang_that_lost_a_node_waits_with_its_slots_or_gives_them_up_as_it_says() -> None:
    for requeue in (False, True):
        world = World()
        world.add_nodes("a", "b")
        add_job(world, "train", 2, facts=JobFacts(requeue=requeue))
        world.run()
        lose(world, "b")
        world.run()
        assert phase(world, "train") == ("Preempting" if requeue else "Bound")
        assert world.placements["default/train"].status.reason == ("NoSpare" if requeue else None)


def test_a_gang_of_higher_priority_that_lost_a_node_takes_one_from_a_gang_of_lower_priority() -> None:
    world = World()
    world.add_nodes(*"abcd")
    add_job(world, "high", 2, priority=5)
    add_job(world, "low", 2)
    world.run()
    lose(world, world.slots_of("high")[0])
    world.find("high-0-1")
    pod = world.find("high-0-1")
    world._set_pod(replace(pod, spec=replace(pod.spec, priority=5)))
    world.run()
    assert phase(world, "low") == "Preempting"
    world.remove_gang("low")
    world.run()
    assert len(world.nodes_of("high")) == 2


def test_a_victims_node_that_breaks_meanwhile_is_planned_around() -> None:
    world = a_full_cluster()
    world.set_node(node("e", unschedulable=True))
    add_job(world, "urgent", 2, priority=10)
    world.run()
    broken = world.slots_of("urgent")[0]
    world.remove_node(broken)
    world.set_node(node("e"))
    world.run()
    assert broken not in world.slots_of("urgent").values()
    for name in ("old", "young"):
        if phase(world, name) == "Preempting":
            world.remove_gang(name)
    world.run()
    assert len(world.nodes_of("urgent")) == 2


def a_plan_for_half_a_node() -> tuple[World, WritePlacement]:
    """Two gangs share a node; the later one is to yield to a third. A spare node comes too late."""
    world = World()
    world.add_nodes("a")
    add_job(world, "stays", 1, gpus=4)
    world.run()
    world.now += 100
    add_job(world, "leaves", 1, gpus=4)
    world.run()
    add_job(world, "urgent", 1, priority=10, gpus=4)
    (write,) = world.decide().actions
    assert isinstance(write, WritePlacement)
    assert write.placement.spec.preempting
    world.add_nodes("b")
    return world, write


def restart(world: World, gang: str, gpus: int = 4) -> None:
    world.remove_pod(f"{gang}-0-0")
    world.add_member(gang, 0, 1, attempt=1, gpus=gpus)


def test_a_gang_beside_one_that_leaves_for_another_never_loses_its_slot_by_a_restart() -> None:
    world, write = a_plan_for_half_a_node()
    world.carry_out(write)
    world.run()
    assert phase(world, "leaves") == "Preempting"
    restart(world, "stays")
    world.run()
    assert world.nodes_of("stays") == {0: "a"}
    world.remove_gang("leaves")
    world.run()
    assert world.nodes_of("urgent") == {0: "a"}


@pytest.mark.parametrize("written", [True, False])
def test_no_slot_is_given_up_for_a_plan_that_may_yet_come_to_nothing(*, written: bool) -> None:
    """Found by simulation (seed 101924): it restarted while the plan that had it leave was being written."""
    world, write = a_plan_for_half_a_node()
    urgent = world.gang("urgent")
    world.state.begin_write(urgent, write.placement)
    restart(world, "leaves")
    assert world.decide().actions == ()
    world.state.end_write(urgent, None)
    if written:
        world.carry_out(write)
        (tell,) = world.decide().actions
        assert isinstance(tell, TellToLeave)
        world.carry_out(tell)
        world.run()
        assert (world.nodes_of("leaves"), world.nodes_of("urgent")) == ({0: "b"}, {0: "a"})
    else:
        world.set_node(node("b", gpus=4))
        world.run()
        assert (world.nodes_of("leaves"), world.nodes_of("urgent")) == ({0: "a"}, {0: "b"})


def test_no_plan_counts_on_the_leaving_of_a_gang_that_it_starts_again() -> None:
    """Seed 103722: the next plan dropped the first one, as a gang being bound is not preempted."""
    world = World()
    world.add_nodes("a")
    add_job(world, "restarts", 1)
    world.run()
    restart(world, "restarts", gpus=8)
    add_job(world, "urgent", 1, priority=10)
    (again,) = world.decide().actions
    assert isinstance(again, WritePlacement)
    assert (again.placement.name, again.placement.spec.preempting) == ("restarts", False)
    world.carry_out(again)
    world.run()
    assert phase(world, "restarts") == "Preempting"
    world.remove_gang("restarts")
    world.run()
    assert world.nodes_of("urgent") == {0: "a"}


def test_a_gang_that_is_both_stuck_and_of_lower_priority_makes_room_once() -> None:
    """Found by simulation (seed 5038): what it would give back was counted twice."""
    world = World()
    world.add_nodes("a", "b")
    add_job(world, "high", 1, priority=10)
    add_job(world, "low", 1, gpus=4)
    world.run()
    (held,) = world.nodes_of("low").values()
    (lost,) = world.nodes_of("high").values()
    world.add_pod("highest", {"priority": 20, "gpus": 4})
    world.run()
    assert world.find("highest").spec.node_name == held
    world.remove_node(lost)
    world.remove_pod("high-0-0")
    world.add_member("high", 0, 1, attempt=1, priority=10)
    world.remove_pod("low-0-0")
    excluded = {"key": "metadata.name", "operator": "NotIn", "values": [held]}
    terms = {"nodeSelectorTerms": [{"matchFields": [excluded]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    world.add_member("low", 0, 1, attempt=1, gpus=4, affinity=affinity)
    world.run()
    assert phase(world, "low") == "", "it has no bound pod and gave its slot back; it was not asked to leave"
    assert not world.placements["default/high"].spec.preempting
