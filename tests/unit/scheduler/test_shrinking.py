"""Gangs that continue with fewer nodes without a spare (noSpare: Shrink), and get the others back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.scheduler.explain.why_waiting import explain
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.plan import TellToLeave
from tests.unit.scheduler.test_preemption import add_job, phase
from tests.unit.scheduler.world import World, reason_of


def a_job_without_spares(size: int = 3, *, fewest: int = 2, **facts: Any) -> World:
    """A job on as many nodes as there are."""
    world = World()
    world.add_nodes(*"abcdef"[:size])
    add_job(world, "train", size, facts=JobFacts(fewest=fewest, **facts))
    world.run()
    return world


def lose(world: World, *slots: int, attempt: int) -> list[str]:
    """Nodes of these slots vanish; the job's controller makes pods for the next attempt there."""
    lost = [world.nodes_of("train")[slot] for slot in slots]
    size = world.gang("train").size
    for slot, name in zip(slots, lost, strict=True):
        old = next(pod for pod in world.pods.values() if pod.spec.node_name == name)
        world.remove_node(name)
        world.remove_pod(old.name)
        world.add_member("train", slot, size, attempt=attempt)
    return lost


def runs_without(world: World, *slots: int, attempt: int = 2) -> None:
    """The job's controller says so."""
    world.set_job("train", JobFacts(fewest=2, attempt=attempt, left_out=slots))


def delete_placement(world: World) -> None:
    """By hand."""
    world.state.remove_placement(world.placements.pop("default/train"))


def given_up(world: World) -> dict[int, int]:
    return {each.slot: each.attempt for each in world.placements["default/train"].spec.given_up}


def test_it_gives_up_the_slot_and_is_bound_whole_without_it() -> None:
    world = a_job_without_spares()
    lose(world, 1, attempt=2)
    plan = world.run()
    assert world.nodes_of("train").keys() == {0, 2}
    placement = world.placements["default/train"]
    assert (given_up(world), placement.spec.size, phase(world, "train")) == ({1: 2}, 2, "Bound")
    assert plan.waiting == {}
    gang = world.gang("train")
    assert "runs with 2 of 3 nodes" in explain(world.state.snapshot(), gang, now=world.now).summary


def test_it_waits_where_too_few_would_be_left() -> None:
    world = a_job_without_spares()
    lose(world, 1, 2, attempt=2)
    plan = world.run()
    assert reason_of(plan, world, "train") == "NotEnoughNodes"
    assert given_up(world) == {}
    assert world.slots_of("train").keys() == {0, 1, 2}


def test_spares_are_used_first() -> None:
    world = a_job_without_spares(4)
    world.add_nodes("spare")
    lose(world, 1, 2, attempt=2)
    world.run()
    assert world.nodes_of("train")[1] == "spare"
    assert given_up(world) == {2: 2}


def test_a_gang_of_lower_priority_leaves_before_it_gives_up_a_slot() -> None:
    world = World()
    world.add_nodes(*"abcd")
    add_job(world, "low", 1)
    add_job(world, "train", 3, facts=JobFacts(fewest=2), priority=5)
    world.run()
    lose(world, 1, attempt=2)
    world.run()
    assert phase(world, "low") == "Preempting"
    assert given_up(world) == {}


def test_slot_rejoins_if_there_is_unclaimed_room() -> None:
    world = a_job_without_spares()
    lose(world, 1, attempt=2)
    world.run()
    runs_without(world, 1)
    add_job(world, "waits", 1)
    world.add_nodes("new")
    world.run()
    assert list(world.nodes_of("waits").values()) == ["new"]
    assert world.nodes_of("train").keys() == {0, 2}
    world.add_nodes("newer")
    world.run()
    assert world.nodes_of("train")[1] == "newer"
    assert (given_up(world), phase(world, "train")) == ({}, "Bound")


def test_a_slot_that_joins_takes_no_node_of_its_own_gang() -> None:
    world = World()
    world.add_nodes(*"ab", gpus=8)
    add_job(world, "train", 2, facts=JobFacts(fewest=1), gpus=4)
    world.run()
    lose(world, 1, attempt=2)
    for pod in [pod for pod in world.pods.values() if not pod.spec.node_name]:
        world.remove_pod(pod.name)
    world.add_member("train", 1, 2, attempt=2, gpus=4)  # there would be room for it beside slot 0
    world.run()
    assert world.nodes_of("train").keys() == {0}


def test_joining_slot_whose_node_breaks_is_given_up_again_without_preemption() -> None:
    world = World()
    world.add_nodes(*"abc")
    add_job(world, "train", 3, facts=JobFacts(fewest=2), priority=5)
    world.run()
    lose(world, 1, attempt=2)
    world.run()
    runs_without(world, 1)
    world.add_nodes("lows")
    add_job(world, "low", 1)
    world.run()
    world.add_nodes("new")
    write = next(action for action in world.decide().actions)
    world.carry_out(write)
    assert world.slots_of("train")[1] == "new"
    world.remove_node("new")
    plan = world.run()
    assert given_up(world) == {1: 2}
    assert plan.waiting == {}
    assert phase(world, "low") == "Bound"


def test_a_pod_of_a_later_attempt_asks_again_as_a_member() -> None:
    world = a_job_without_spares()
    lose(world, 1, attempt=2)
    world.run()
    world.remove_pod("train-1-2")
    world.add_member("train", 1, 3, attempt=3)
    plan = world.run()
    assert plan.waiting == {}
    assert given_up(world) == {1: 3}  # this attempt continues without it, too
    world.add_nodes("new")
    world.remove_pod("train-1-3")
    world.add_member("train", 1, 3, attempt=4)
    add_job(world, "waits", 1)
    world.run()
    assert world.nodes_of("train")[1] == "new"
    assert given_up(world) == {}


def test_gang_without_spare_does_not_yield_to_one_that_can_shrink() -> None:
    world = World()
    world.add_nodes(*"abcd")
    add_job(world, "other", 2)
    add_job(world, "train", 2, facts=JobFacts(fewest=1))
    world.run()
    for gang in ("other", "train"):
        pod = next(pod for pod in world.pods.values() if pod.name == f"{gang}-1-0")
        world.remove_node(pod.spec.node_name)
        world.remove_pod(pod.name)
        world.add_member(gang, 1, 2, attempt=2)
    plan = world.run()
    assert given_up(world) == {1: 2}
    assert reason_of(plan, world, "other") == "NotEnoughNodes"
    assert not any(isinstance(action, TellToLeave) for action in plan.actions)


def test_a_new_leader_knows_what_was_given_up() -> None:
    world = a_job_without_spares()
    lose(world, 1, attempt=2)
    world.run()
    world.forget_all()
    assert world.run().waiting == {}
    assert given_up(world) == {1: 2}
    assert world.nodes_of("train").keys() == {0, 2}


@pytest.mark.parametrize("has_pod", [True, False])
def test_a_deleted_placement_of_a_shrunk_job_is_written_again_from_what_the_job_recorded(has_pod: bool) -> None:
    """Issue 11.10. Without checkpoints the job keeps no pod for the slot that it continues without."""
    world = a_job_without_spares()
    lose(world, 1, attempt=2)
    world.run()
    runs_without(world, 1)
    if not has_pod:
        world.remove_pod("train-1-2")
    before = world.placements["default/train"].spec
    delete_placement(world)
    plan = world.run()
    placement = world.placements["default/train"]
    assert (placement.spec.slots, placement.spec.size, given_up(world)) == (before.slots, before.size, {1: 2})
    assert (placement.status.phase, plan.waiting) == ("Bound", {})
    world.add_nodes("new")
    world.run()
    assert world.nodes_of("train").keys() == ({0, 1, 2} if has_pod else {0, 2})


def test_a_deleted_placement_of_a_job_that_asks_for_all_its_nodes_gives_none_up() -> None:
    """Issue 11.10: the scheduler may hear of the next attempt's pods before it hears of the job's status."""
    world = a_job_without_spares()
    lose(world, 1, attempt=2)
    world.run()
    runs_without(world, 1)
    world.remove_pod("train-1-2")
    world.add_member("train", 1, 3, attempt=3)
    delete_placement(world)
    assert reason_of(world.run(), world, "train") == "NotEnoughNodes"
    world.add_nodes("new")
    world.run()
    assert (world.nodes_of("train").keys(), given_up(world)) == ({0, 1, 2}, {})


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("lose"), st.integers(0, 3)),
        st.tuples(st.just("add"), st.just(0)),
        st.tuples(st.just("restart"), st.just(0)),
        st.tuples(st.just("run"), st.just(0)),
        st.tuples(st.just("lead"), st.just(0)),
        st.tuples(st.just("delete"), st.just(0)),
    ),
    max_size=12,
)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_gang_never_runs_below_its_minimum_or_holds_a_node_twice(
    steps: list[tuple[str, int]],
) -> None:
    world = a_job_without_spares(4, fewest=2)
    attempt, names = 1, iter(f"new{number}" for number in range(20))
    left: tuple[int, ...] = ()
    runs = False
    for kind, slot in steps:
        on = world.nodes_of("train")
        if kind == "lose" and slot in on:
            attempt += 1
            lose(world, slot, attempt=attempt)
        elif kind == "add":
            world.add_nodes(next(names))
        elif kind == "restart":  # those that have no node are recreated and ask again
            attempt += 1
            for pod in [pod for pod in world.pods.values() if not pod.spec.node_name]:
                world.remove_pod(pod.name)
                world.add_member("train", int(pod.metadata.labels["muster.dev/slot"]), 4, attempt=attempt)
        elif kind == "run" and world.gang("train").complete and not world.gang("train").pending:
            left = tuple(sorted(given_up(world)))
            world.set_job("train", JobFacts(fewest=2, attempt=attempt, left_out=left))
            runs = True
        elif kind == "lead":
            world.forget_all()
        elif kind == "delete" and runs and not world.gang("train").pending:
            delete_placement(world)
        if kind in ("lose", "restart"):
            world.set_job("train", JobFacts(fewest=2))
            runs = False
        world.run()
        slots, out = world.slots_of("train"), given_up(world)
        assert len(set(slots.values())) == len(slots), "two slots on one node"
        assert slots.keys().isdisjoint(out), "a slot that is placed and given up"
        assert slots.keys() | out.keys() == set(range(4)), "a slot was forgotten"
        assert len(slots) >= 2, "fewer slots than the job needs"
        fresh = world.listed().snapshot()
        assert set(fresh.gangs) == set(world.state.snapshot().gangs)
        for key, gang in fresh.gangs.items():
            ours = world.state.snapshot().gangs[key]
            assert (gang.pending.keys(), gang.joiners.keys(), gang.complete) == (
                ours.pending.keys(),
                ours.joiners.keys(),
                ours.complete,
            )
