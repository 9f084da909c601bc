"""Bad days of backfilled gangs: the gang in front changes, nodes break, others come, the queue is long."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from muster.scheduler import decide as decide_module
from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.plan import WritePlacement
from tests.unit.scheduler.teamwork import add, owned
from tests.unit.scheduler.test_overtaking import (
    MIN_RUN_S,
    RESTARTABLE,
    add_restartable,
    end,
    leaving,
    run_and_leave,
    waiting_head,
)
from tests.unit.scheduler.world import World, node, reason_of


def with_backfilled() -> World:
    """A gang waits for three nodes; a restartable gang runs on the free one, and may be asked to leave from now on."""
    world = waiting_head()
    add_restartable(world, "small")
    world.run()
    assert world.nodes_of("small") == {0: "c"}
    world.now += MIN_RUN_S + 1
    return world


def record(world: World, name: str = "small") -> str:
    """The gang for which the nodes of this one are reserved, as its Placement says."""
    backfill = world.placements[f"default/{name}"].spec.backfill
    return backfill.gang if backfill is not None else ""


def asked(world: World) -> set[str]:
    return {each.spec.gang for each in world.placements.values() if each.status.phase == "Preempting"}


def recreate(world: World, name: str, size: int, **spec: object) -> None:
    """The gang's pods are replaced by others, in one moment."""
    world.remove_gang(name)
    for slot in range(size):
        world.add_member(name, slot, size, attempt=1, **spec)


# The gang in front changes


def test_after_the_reserved_gang_was_deleted_a_backfilled_gang_runs_on_as_any_other() -> None:
    world = with_backfilled()
    world.remove_gang("head")
    end(world, "running")
    world.run()
    assert asked(world) == set()
    assert world.nodes_of("small") == {0: "c"}
    assert record(world) == ""
    assert not world.state.snapshot(world.now).backfilled


def test_a_gang_that_takes_the_name_of_the_deleted_one_takes_no_nodes() -> None:
    world = with_backfilled()
    recreate(world, "head", 3, uid="another")
    end(world, "running")
    world.run()
    assert asked(world) == set()
    assert record(world) == ""


def test_a_reserved_gang_that_was_made_smaller_takes_the_free_nodes_only() -> None:
    world = with_backfilled()
    recreate(world, "head", 2)
    world.run()
    assert record(world) == "default/head", "it still waits"
    end(world, "running")
    world.run()
    assert asked(world) == set()
    assert len(world.nodes_of("head")) == 2
    assert record(world) == ""


def test_a_reserved_gang_that_now_needs_other_nodes_takes_those() -> None:
    world = with_backfilled()
    world.add_nodes("x", labels={"kind": "other"})
    world.add_gang("on-x", 1, nodeSelector={"kind": "other"})
    world.run()
    recreate(world, "head", 1, nodeSelector={"kind": "other"})
    world.run()
    assert record(world) == ""
    end(world, "running")
    end(world, "on-x")
    world.run()
    assert world.nodes_of("head") == {0: "x"}
    assert asked(world) == set()


def test_when_the_reserved_gang_is_deleted_the_record_names_the_next_one_that_waits_for_these_nodes() -> None:
    world = waiting_head()
    world.add_gang("second", 3)
    add_restartable(world, "small")
    world.run()
    assert record(world) == "default/head"
    world.now += MIN_RUN_S + 1
    world.remove_gang("head")
    world.run()
    assert record(world) == "default/second"
    end(world, "running")
    run_and_leave(world)
    assert len(world.nodes_of("second")) == 3


def test_a_reserved_gang_that_lacks_a_pod_for_a_moment_stays_in_the_record() -> None:
    world = with_backfilled()
    world.remove_pod("head-1-0")
    world.run()
    assert record(world) == "default/head"
    world.add_member("head", 1, 3, attempt=1)
    end(world, "running")
    run_and_leave(world)
    assert len(world.nodes_of("head")) == 3


def test_many_records_are_corrected_a_few_at_a_time() -> None:
    world = World()
    world.add_nodes(*(f"n{number:02}" for number in range(42)))
    world.add_gang("running", 2)
    world.run()
    world.add_gang("head", 42)
    for number in range(40):
        add_restartable(world, f"small-{number}")
    world.run()
    world.remove_gang("head")
    plan = world.decide()
    assert sum(isinstance(action, WritePlacement) for action in plan.actions) == 16
    world.run()
    assert not world.state.snapshot(world.now).backfilled


def test_when_the_reserved_gang_is_deleted_after_the_request_the_asked_gang_gets_its_nodes_back() -> None:
    world = with_backfilled()
    end(world, "running")
    world.run()
    assert leaving(world, "small") == "Backfilled"
    end(world, "head")
    recreate(world, "small", 1)  # it saved and left
    world.run()
    assert len(world.nodes_of("small")) == 1
    assert record(world) == ""


# Nodes break


@pytest.mark.parametrize("broken", ["a", "c"], ids=["one that it waits for", "the one of the backfilled gang"])
def test_a_reservation_that_cannot_be_complete_any_more_asks_no_gang_to_leave(broken: str) -> None:
    world = with_backfilled()
    world.set_node(node(broken, ready=False))
    if broken == "c":
        recreate(world, "small", 1)
    end(world, "running")
    plan = world.run()
    assert asked(world) == set()
    assert reason_of(plan, world, "head") == "MoreThanTheCluster"
    assert len(world.nodes_of("small")) == 1


def test_when_a_node_of_the_plan_breaks_after_the_request_the_asked_gang_comes_back() -> None:
    world = with_backfilled()
    end(world, "running")
    world.run()
    assert asked(world) == {"small"}
    world.remove_node("a")
    recreate(world, "small", 1)
    world.run()
    assert world.nodes_of("head") == {}
    assert len(world.nodes_of("small")) == 1
    assert asked(world) == set()


def test_a_new_node_completes_the_reservation_and_no_gang_is_asked() -> None:
    """Node autoscaling brings what is missing."""
    world = with_backfilled()
    world.add_nodes("d")
    end(world, "running")
    world.run()
    assert asked(world) == set()
    assert sorted(world.nodes_of("head").values()) == ["a", "b", "d"]
    assert record(world) == ""


# Others come


def test_a_higher_priority_preempts_a_backfilled_gang_for_a_reason_of_its_own() -> None:
    world = with_backfilled()
    world.add_gang("urgent", 1, priority=1000)
    world.run()
    assert leaving(world, "small") == "Preempted"
    recreate(world, "small", 1)
    world.run()
    assert world.nodes_of("urgent") == {0: "c"}
    assert world.nodes_of("small") == {}


def test_a_higher_priority_need_not_wait_until_a_backfilled_gang_has_rested() -> None:
    world = waiting_head()
    add_restartable(world, "small")
    world.run()
    world.add_gang("urgent", 1, priority=1000)
    world.run()
    assert leaving(world, "small") == "Preempted"


def test_no_gang_is_backfilled_on_a_node_with_which_a_preempting_gang_can_start() -> None:
    """One node is free. The gang in front preempts a gang for the other one, so the free one is not used before."""
    world = World()
    world.add_nodes("a", "b")
    world.set_job("low", JobFacts())
    world.add_gang("low", 1, priority=-5)
    world.run()
    world.add_gang("urgent", 2, priority=1000)
    add_restartable(world, "small")
    world.run()
    assert asked(world) == {"low"}
    assert world.nodes_of("small") == {}


def test_a_balloon_leaves_before_a_backfilled_gang_is_asked() -> None:
    world = World()
    world.add_nodes("a", "b", "c", "d")
    world.add_gang("running", 2)
    world.run()
    world.add_pod("balloon", {"priority": -10}, labels={"muster.dev/balloon": "true"})
    world.run()
    world.add_gang("head", 3)
    world.run()
    add_restartable(world, "small")
    world.run()
    assert world.nodes_of("small") == {0: "d"}
    world.now += MIN_RUN_S + 1
    end(world, "running")
    world.run()
    assert asked(world) == set()
    assert sorted(world.nodes_of("head").values()) == ["a", "b", "c"]


def lent_and_backfilled() -> World:
    """Team blue owns three nodes. Its head waits for all; a restartable borrower of team red runs on a free one."""
    world = World()
    owned(world, "blue", "a", "b", "c")
    add(world, "running", 2, "blue")
    world.run()
    add(world, "head", 3, "blue")
    add(world, "guest", 1, "red", borrows=True, facts=RESTARTABLE)
    world.run()
    assert len(world.nodes_of("guest")) == 1
    assert record(world, "guest") == "default/head"
    return world


def test_a_borrower_on_reserved_nodes_gives_them_back_to_their_owner_without_a_time_to_rest() -> None:
    world = lent_and_backfilled()
    end(world, "running")
    world.run()
    assert leaving(world, "guest") == "Preempted", "because it borrows; that comes before the reservation"
    world.remove_gang("guest")
    world.run()
    assert len(world.nodes_of("head")) == 3


def test_a_gang_of_the_owner_that_is_behind_leaves_a_backfilled_borrower_alone() -> None:
    """It may not use the reserved node itself, so nothing is won."""
    world = lent_and_backfilled()
    add(world, "own", 1, "blue")
    world.run()
    assert asked(world) == set()
    assert world.nodes_of("guest") == {0: "c"}


# Many gangs


@pytest.mark.slow
def test_with_ten_thousand_waiting_gangs_a_plan_tries_a_limited_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them fits beside the head. What a plan does must not grow with the queue."""
    calls = Counter[str]()

    def counted(name: str) -> None:
        before = getattr(decide_module, name)

        def call(*arguments: object, **options: object) -> object:
            calls[name] += 1
            return before(*arguments, **options)

        monkeypatch.setattr(decide_module, name, call)

    world = World()
    world.add_nodes("a", "b", "c")
    world.add_gang("running", 2)
    world.run()
    world.add_gang("head", 3)
    add_restartable(world, "small")
    world.run()
    for number in range(10_000):
        world.set_job(f"w-{number}", msgspec.structs.replace(RESTARTABLE, asked=number % 3))
        world.add_member(f"w-{number}", 0, 1, **{"gpus": 8 if number % 2 else 4})
    world.run()
    for name in ("_choose", "make_room", "_place"):
        counted(name)
    world.now += 1.0
    plan = world.decide()
    assert plan.actions == ()
    assert plan.unreported > 9_900
    assert calls["_place"] < 10
    assert calls["_choose"] < 100
    assert calls["make_room"] < 10


@pytest.mark.slow
def test_of_a_thousand_waiting_gangs_the_first_get_the_reserved_nodes() -> None:
    world = World()
    world.add_nodes(*(f"n{number}" for number in range(22)))
    world.add_gang("running", 2)
    world.run()
    world.add_gang("head", 22)
    for number in range(1_000):
        world.set_job(f"w-{number:05}", RESTARTABLE)
        world.add_member(f"w-{number:05}", 0, 1)
        world.now += 0.01
    world.run()
    running = {name.removeprefix("default/") for name in world.placements} - {"running"}
    assert running == {f"w-{number:05}" for number in range(20)}
    world.now += MIN_RUN_S + 1
    end(world, "running")
    world.run()
    assert asked(world) == running, "no gang more, and none less"


def test_a_gang_that_cannot_restart_is_passed_by_many_and_still_starts_when_its_turn_comes() -> None:
    world = waiting_head()
    world.set_job("stiff", JobFacts())
    world.add_gang("stiff", 1)
    for round_ in range(5):
        add_restartable(world, f"quick-{round_}")
        world.run()
        assert len(world.nodes_of(f"quick-{round_}")) == 1
        world.now += 10.0
        end(world, f"quick-{round_}")
    end(world, "running")
    run_and_leave(world)
    assert len(world.nodes_of("head")) == 3
    add_restartable(world, "quick-again")
    end(world, "head")
    run_and_leave(world)
    assert len(world.nodes_of("stiff")) == 1
