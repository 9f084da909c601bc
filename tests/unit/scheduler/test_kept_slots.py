"""Slots of placed gangs: who gets them back after a restart, what is repaired, and when they are given up."""

from __future__ import annotations

import msgspec
import pytest

from muster.kube.objects.meta import ObjectMeta
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.plan import Bind, DeletePlacement, ReleaseGang, RemoveMember, WritePlacement
from tests.unit.scheduler.world import World, node, reason_of


def test_a_restarted_gang_gets_its_slots_back_with_one_new_revision() -> None:
    world = World()
    world.add_nodes("a", "b", "c", "d")
    world.add_gang("train", 3)
    world.run()
    before = world.slots_of("train")
    world.remove_gang("train")
    world.add_gang("train", 3, attempt=1)
    world.run()
    assert world.nodes_of("train") == before
    assert world.placements["default/train"].spec.attempt == 1


def test_no_filler_gets_a_slot_between_deletion_and_remaking() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("train", 2)
    world.run()
    world.remove_gang("train")
    world.add_gang("filler", 1)
    world.run()
    assert world.nodes_of("filler") == {}
    world.add_gang("train", 2, attempt=1)
    world.run()
    assert world.nodes_of("train") == {0: "a", 1: "b"}


def test_a_new_scheduler_that_finds_only_the_placement_keeps_the_slots() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("train", 2)
    world.run()
    world.remove_gang("train")
    fresh = World()
    for obj in world.nodes.values():
        fresh.set_node(obj)
    for placement in world.placements.values():
        fresh.placements[placement.key] = placement
        fresh.state.set_placement(placement, fresh.now)
    fresh.add_gang("filler", 1, gpus=1)
    fresh.run()
    assert fresh.nodes_of("filler") == {}


def test_only_slots_whose_node_is_lost_are_replaced_several_at_once() -> None:
    world = World()
    world.add_nodes(*"abcdef")
    world.add_gang("train", 4)
    world.run()
    before = world.slots_of("train")
    lost = [before[1], before[3]]
    world.remove_node(lost[0])
    world.set_node(node(lost[1], ready=False))
    for slot in (1, 3):
        world.remove_pod(f"train-{slot}-0")
        world.add_member("train", slot, 4, attempt=1)
    world.now += 100
    (write,) = world.decide().actions
    assert isinstance(write, WritePlacement)
    world.run()
    after = world.slots_of("train")
    assert {slot for slot in after if after[slot] != before[slot]} == {1, 3}
    assert world.nodes_of("train") == after
    assert world.placements["default/train"].spec.attempt == 1


def test_a_repair_is_not_blocked_by_a_waiting_gang_that_needs_its_slots() -> None:
    world = World()
    world.add_nodes(*"abcdef")
    world.add_gang("first", 4)
    world.run()
    world.add_gang("head", 5)
    world.remove_node("a")
    world.remove_pod("first-0-0")
    world.add_member("first", 0, 4, attempt=1)
    world.run()
    assert len(world.nodes_of("first")) == 4
    early = World()
    early.add_nodes(*"abcdef")
    # arrives first, is placed later, and is larger than what is left
    early.add_gang("urgent", 6, priority=9, preemptionPolicy="Never")
    early.state.remove_node("f")
    early.add_gang("small", 3)
    early.run()
    assert len(early.nodes_of("small")) == 3
    early.set_node(node("f"))
    early.run()
    early.set_node(node(early.slots_of("small")[1], ready=False))
    early.remove_pod("small-1-0")
    early.add_member("small", 1, 3, attempt=1)
    early.run()
    assert len(early.nodes_of("small")) == 3


def test_recreated_node_of_the_same_name_is_another_node() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("train", 1)
    world.run()
    world.remove_gang("train")
    world.set_node(node("a", uid="another"))
    world.add_gang("train", 1, attempt=1)
    world.run()
    placement = world.placements["default/train"]
    assert placement.spec.slots[0].node_uid == world.nodes[placement.spec.slots[0].node].uid


def test_a_slot_moves_when_its_pod_excludes_the_node() -> None:
    world = World()
    world.add_nodes("a", "b", "c")
    world.add_gang("train", 2)
    world.run()
    world.remove_pod("train-0-0")
    rule = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["a"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [rule]}}}
    world.add_member("train", 0, 2, attempt=1, affinity=affinity)
    world.run()
    assert world.nodes_of("train") == {0: "c", 1: "b"}


def test_a_slot_waits_for_the_old_pod_on_its_node() -> None:
    world = World()
    world.add_nodes("a", "b", "c")
    world.add_gang("train", 2)
    world.run()
    world.terminate("train-0-0")
    world.add_member("train", 0, 2, attempt=1)
    plan = world.run()
    assert reason_of(plan, world, "train") == "WaitingForOldPod"
    world.remove_pod("train-0-0")
    world.run()
    assert world.nodes_of("train") == {0: "a", 1: "b"}


def test_after_drain_and_uncordon_the_gang_gets_its_slot_back_not_a_filler() -> None:
    """volcano-sh/volcano#5805."""
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("train", 2)
    world.run()
    world.set_node(node("b", unschedulable=True))
    world.remove_pod("train-1-0")
    world.add_member("train", 1, 2, attempt=1)
    world.add_gang("filler", 1, gpus=1)
    plan = world.run()
    assert reason_of(plan, world, "train") == "NotEnoughNodes"
    world.set_node(node("b"))
    world.run()
    assert world.nodes_of("train") == {0: "a", 1: "b"}
    assert world.nodes_of("filler") == {}


def test_gang_half_bound_at_its_deadline_is_released_and_placed_again() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("train", 2)
    world.carry_out(world.decide().actions[0])
    world.carry_out(world.decide().actions[0])
    world.now += 31
    (release,) = world.decide().actions
    assert isinstance(release, ReleaseGang)
    assert "1 of 2" in release.reason
    world.carry_out(release)
    (remove,) = world.decide().actions
    assert isinstance(remove, RemoveMember)
    assert remove.pod == "train-0-0"
    world.carry_out(remove)
    (delete,) = world.decide().actions
    assert isinstance(delete, DeletePlacement)
    world.carry_out(delete)
    world.add_member("train", 0, 2, attempt=1)
    world.run()
    assert len(world.nodes_of("train")) == 2


def test_a_gang_left_half_bound_by_a_scheduler_whose_clock_was_ahead_is_released_in_time() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("train", 2)
    world.now += 3600
    world.carry_out(world.decide().actions[0])
    world.carry_out(world.decide().actions[0])
    world.now -= 3600
    world.forget_all()
    assert not any(isinstance(action, ReleaseGang) for action in world.decide().actions)
    world.now += 31
    (release,) = world.decide().actions
    assert isinstance(release, ReleaseGang)


def test_unexecuted_plan_is_resumed_after_its_deadline() -> None:
    world = World()
    world.add_nodes("a", "b", "c")
    world.add_gang("train", 2)
    world.carry_out(world.decide().actions[0])
    slots = world.slots_of("train")
    world.now += 300
    world.run()
    assert world.nodes_of("train") == slots


def test_a_replacement_that_cannot_be_bound_in_time_does_not_cost_the_healthy_members() -> None:
    world = World()
    world.add_nodes("a", "b", "c")
    world.add_gang("train", 2)
    world.run()
    world.now += 100
    world.remove_node("b")
    world.remove_pod("train-1-0")
    world.add_member("train", 1, 2, attempt=1)
    world.carry_out(world.decide().actions[0])
    (bind,) = world.decide().actions
    assert isinstance(bind, Bind)
    world.state.begin_bind(bind.uid, bind.node)
    world.state.end_bind(bind.uid, world.now, error="no answer", retry_at=world.now + 100)
    world.now += 31
    (again,) = world.decide().actions
    assert isinstance(again, WritePlacement)
    assert world.nodes_of("train") == {0: "a"}


def test_slots_are_given_up_when_the_job_has_ended_or_the_hold_is_over() -> None:
    for ended in (True, False):
        world = World(hold_s=50)
        world.add_nodes("a", "b")
        world.add_gang("train", 2)
        world.run()
        world.remove_gang("train")
        assert world.decide().actions == ()
        assert world.decide().wake_at == world.now + 50
        if ended:
            world.state.jobs.set("uid-train", JobFacts(ended="Suspended"))
        else:
            world.now += 50
        world.run()
        assert world.placements == {}


def test_recreated_job_does_not_inherit_the_placement() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("train", 2, uid="old")
    world.run()
    world.remove_gang("train")
    world.add_gang("train", 2, uid="new")
    world.run()
    assert world.placements["default/train"].spec.gang_uid == "new"
    assert len(world.nodes_of("train")) == 2


def test_freed_slot_stays_reserved_until_the_move_is_written() -> None:
    """That write may come after the other gang's, or be lost: then both gangs would keep the one node's room."""
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("moves", 1)
    world.carry_out(world.decide().actions[0])
    moves = world.gang("moves")
    world.state.avoid(moves, 0, "a")
    (move,) = world.decide().actions
    assert isinstance(move, WritePlacement)
    assert [slot.node for slot in move.placement.spec.slots] == ["b"]

    world.state.begin_write(moves, move.placement)
    world.add_gang("comes", 1)
    plan = world.decide()
    assert plan.actions == ()
    assert reason_of(plan, world, "comes") == "NotEnoughNodes"

    world.state.end_write(moves, None)
    retried, *others = world.decide().actions
    assert retried == move
    assert others == []

    world.carry_out(retried)
    world.run()
    assert (world.nodes_of("moves"), world.nodes_of("comes")) == ({0: "b"}, {0: "a"})


def test_freed_room_is_kept_even_if_the_last_pod_ends_during_the_write() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("moves", 1)
    world.run()
    assert world.nodes_of("moves") == {0: "a"}
    away = {"key": "metadata.name", "operator": "NotIn", "values": ["a"]}
    terms = {"nodeSelectorTerms": [{"matchFields": [away]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    world.terminate("moves-0-0")
    world.add_member("moves", 0, 1, attempt=1, affinity=affinity)
    (move,) = world.decide().actions
    assert isinstance(move, WritePlacement)

    moves = world.gang("moves")
    world.state.begin_write(moves, move.placement)
    world.remove_pod("moves-0-0")
    world.add_gang("comes", 1)
    assert reason_of(world.decide(), world, "comes") == "NotEnoughNodes"
    world.state.end_write(moves, None)
    world.run()
    assert (world.nodes_of("moves"), world.nodes_of("comes")) == ({0: "b"}, {0: "a"})


def test_a_slot_stays_beside_room_that_a_write_gives_up_and_a_pod_still_uses() -> None:
    """The room is reserved until the write has ended. The pod and the reservation take it only once."""
    world = World()
    world.add_nodes("a")
    world.add_gang("moves", 1, gpus=4)
    world.run()
    world.terminate("moves-0-0")
    away = {"key": "metadata.name", "operator": "NotIn", "values": ["a"]}
    terms = {"nodeSelectorTerms": [{"matchFields": [away]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    world.add_member("moves", 0, 1, attempt=1, gpus=4, affinity=affinity)
    world.add_gang("comes", 1, gpus=4)
    world.add_nodes("b", gpus=4)
    move, comes = world.decide().actions
    assert isinstance(move, WritePlacement)
    assert isinstance(comes, WritePlacement)
    assert [slot.node for slot in (*move.placement.spec.slots, *comes.placement.spec.slots)] == ["b", "a"]

    moves = world.gang("moves")
    world.state.begin_write(moves, move.placement)
    world.carry_out(comes)
    world.add_nodes("c")
    assert not [action for action in world.decide().actions if isinstance(action, WritePlacement)]
    world.remove_pod("moves-0-0")
    assert not [action for action in world.decide().actions if isinstance(action, WritePlacement)]
    world.state.end_write(moves, None)
    world.run()
    assert world.nodes_of("comes") == {0: "a"}


def keep_too(world: World, gang: str, of: str) -> None:
    """A Placement of an earlier version of the scheduler: it keeps the very nodes that another one keeps."""
    placement = world.placements[f"default/{of}"]
    world.write(
        msgspec.structs.replace(
            placement,
            metadata=ObjectMeta(name=gang, namespace="default"),
            spec=msgspec.structs.replace(placement.spec, gang=gang, gang_uid=f"uid-{gang}"),
        ),
        placement.status,
    )


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_of_two_placements_that_keep_one_node_the_earlier_gang_has_it_when_both_restart(order: tuple[str, str]) -> None:
    world = World()
    world.add_nodes("a")
    world.add_gang("first", 1)
    world.run()
    keep_too(world, "second", "first")
    world.now += 1.0
    world.remove_gang("first")
    for gang in order:
        world.add_member(gang, 0, 1, attempt=1)
    plan = world.run()
    assert world.nodes_of("first") == {0: "a"}
    assert world.nodes_of("second") == {}
    assert reason_of(plan, world, "second") == "NotEnoughNodes"
    world.add_nodes("b")
    world.run()
    assert world.nodes_of("second") == {0: "b"}
    assert world.slots_of("second") == {0: "b"}


def test_of_two_placements_that_keep_one_node_the_one_whose_pod_runs_there_has_it() -> None:
    world = World()
    world.add_nodes("a")
    world.add_gang("late", 1)
    world.run()
    keep_too(world, "early", "late")
    world.add_member("early", 0, 1, attempt=1, priority=5, preemptionPolicy="Never")
    plan = world.run()
    assert world.nodes_of("late") == {0: "a"}
    assert reason_of(plan, world, "early") == "NotEnoughNodes"
    world.add_nodes("b")
    world.run()
    assert (world.nodes_of("late"), world.nodes_of("early")) == ({0: "a"}, {0: "b"})


def test_job_that_needs_fewer_nodes_keeps_no_slot_for_a_pod_of_its_last_attempt() -> None:
    """Fleet seed 499: a job was made smaller while one of its old pods still ran, and kept that node for good."""
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("job", 2)
    world.run()
    world.remove_pod("job-0-0")
    world.add_member("job", 0, 1, attempt=1)
    world.run()
    assert world.nodes_of("job") == {0: "a", 1: "b"}
    world.remove_pod("job-1-0")
    world.run()
    assert [slot.node for slot in world.placements["default/job"].spec.slots] == ["a"]
    world.add_gang("next", 1)
    world.run()
    assert world.nodes_of("next") == {0: "b"}
