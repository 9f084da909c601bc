"""Bad days of backfilled gangs: what they run on, or what they run for, changes meanwhile."""

from __future__ import annotations

import pytest

from muster.api.placement import Placement
from muster.kube.objects.pod import Pod
from muster.scheduler.gangs.priority import JobFacts
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
from tests.unit.scheduler.world import World, reason_of


def with_backfilled() -> World:
    """A gang waits for three nodes; a restartable gang runs on the one that is free, for longer than it may rest."""
    world = waiting_head()
    add_restartable(world, "small")
    world.run()
    assert world.nodes_of("small")
    world.now += MIN_RUN_S + 1
    return world


def record(world: World, name: str = "small") -> str:
    """The gang for which the nodes of this one are reserved, as its Placement says."""
    backfill = world.placements[f"default/{name}"].spec.backfill
    return backfill.gang if backfill is not None else ""


def asked(world: World) -> set[str]:
    return {each.spec.gang for each in world.placements.values() if each.status.phase == "Preempting"}


# The gang in front changes


def test_after_the_reserved_gang_was_deleted_backfilled_gangs_run_on() -> None:
    world = with_backfilled()
    world.remove_gang("head")
    end(world, "running")
    world.run()
    assert asked(world) == set()
    assert world.nodes_of("small")
    assert record(world) == ""


def test_after_the_reserved_gang_was_deleted_a_later_gang_of_its_name_takes_nothing() -> None:
    world = with_backfilled()
    world.remove_gang("head")
    world.run()
    for slot in range(3):
        world.add_member("head", slot, 3, uid="another")
    end(world, "running")
    world.run()
    assert asked(world) == set()


def test_a_reserved_gang_that_was_made_smaller_takes_the_free_nodes() -> None:
    world = with_backfilled()
    world.remove_gang("head")
    for slot in range(2):
        world.add_member("head", slot, 2, attempt=1, uid="uid-head")
    world.run()
    assert asked(world) == set()
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
    world.remove_gang("head")
    world.add_member("head", 0, 1, attempt=1, uid="uid-head", nodeSelector={"kind": "other"})
    world.run()
    assert record(world) == ""
    end(world, "running")
    world.run()
    assert asked(world) == set()
    end(world, "on-x")
    world.run()
    assert world.nodes_of("head") == {0: "x"}
    assert asked(world) == set()


def test_a_second_waiting_gang_in_front_takes_over_the_record() -> None:
    """Two gangs wait before the backfilled one. The first is deleted: now the nodes are reserved for the second."""
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


def test_a_gang_deleted_after_it_asked_leaves_the_nodes_to_the_one_that_was_asked() -> None:
    world = with_backfilled()
    end(world, "running")
    world.run()
    assert leaving(world, "small") == "Backfilled"
    world.remove_gang("head")
    world.run()
    world.remove_gang("small")  # it saved and left
    world.add_member("small", 0, 1, attempt=1)
    world.run()
    assert world.nodes_of("small")
    assert record(world) == ""


# Nodes break


@pytest.mark.parametrize("broken", ["a", "c"])
def test_a_reservation_that_lost_a_node_asks_nobody(broken: str) -> None:
    """The reserved gang needs all three nodes. a: a node that it waits for; c: the one of the backfilled gang."""
    world = with_backfilled()
    world.set_node(__import__("tests.unit.scheduler.world", fromlist=["node"]).node(broken, ready=False))
    if broken == "c":
        world.remove_gang("small")
        world.add_member("small", 0, 1, attempt=1)
    end(world, "running")
    plan = world.run()
    assert asked(world) == set()
    assert reason_of(plan, world, "head") == "MoreThanTheCluster"
    assert world.nodes_of("small")


def test_a_node_that_breaks_after_the_request_ends_the_wait_and_the_gang_comes_back() -> None:
    world = with_backfilled()
    end(world, "running")
    world.run()
    assert asked(world) == {"small"}
    world.remove_node("a")
    world.remove_gang("small")
    world.add_member("small", 0, 1, attempt=1)
    world.run()
    world.now += 200
    world.run()
    assert world.nodes_of("small")
    assert asked(world) == set()


# Others come


def test_a_higher_priority_preempts_the_backfilled_gang_and_does_not_count_it_as_asked() -> None:
    world = with_backfilled()
    world.add_gang("urgent", 1, priority=1000)
    world.run()
    assert leaving(world, "small") == "Preempted"
    world.remove_gang("small")
    world.add_member("small", 0, 1, attempt=1)
    world.run()
    assert len(world.nodes_of("urgent")) == 1
    assert world.nodes_of("small") == {}


def test_balloons_leave_before_backfilled_gangs_work_is_lost() -> None:
    world = waiting_head()
    pod = world.add_pod("balloon", {"priority": -10}, labels={"muster.dev/balloon": "true"})
    world.run()
    add_restartable(world, "small")
    world.run()
    assert world.nodes_of("small")
    world.now += MIN_RUN_S + 1
    world.add_nodes("d")
    world.add_pod("balloon-2", {"priority": -10}, labels={"muster.dev/balloon": "true"})
    world.run()
    end(world, "running")
    world.run()
    print(asked(world), [p.name for p in world.pods.values()], pod.name)
    assert asked(world) == set()
    assert len(world.nodes_of("head")) == 3
