"""Restartable gangs on partly used nodes move together, so that a gang that needs whole nodes fits."""

from __future__ import annotations

import msgspec
import pytest

from muster.scheduler.gangs.priority import JobFacts
from tests.unit.scheduler.teamwork import add
from tests.unit.scheduler.test_expected import HOUR_S, end, leaving, part, remember
from tests.unit.scheduler.world import World

SAVES = JobFacts(restartable=True, requeueable=True, grace_s=10.0)
MOVED_AFTER_S = 600.0


def two_parts(*, left: JobFacts = SAVES, right: JobFacts = SAVES, run_s: float = 10 * HOUR_S) -> World:
    """`left` has 4 GPUs of node a, `right` 3 GPUs of node b; each is expected to run for `run_s`."""
    world = World()
    world.add_nodes("a", "b")
    remember(world, {"left": run_s, "right": run_s, "filler": HOUR_S, "head": HOUR_S})
    for name, facts, gpus in (("left", left, 4), ("filler", SAVES, 4), ("right", right, 3)):
        world.set_job(name, facts)
        world.add_gang(name, 1, **part(gpus))
        world.run()
    assert set(world.nodes_of("right").values()) == {"b"}
    end(world, "filler")
    world.run()
    world.now += MOVED_AFTER_S
    return world


def leave(world: World, name: str) -> None:
    """The job saves, its pods end, and the pods of its next attempt wait."""
    world.remove_gang(name)
    world.run()
    world.set_job(name, msgspec.structs.replace(SAVES, asked=1, since=world.now - 2 * HOUR_S))
    world.add_member(name, 0, 1, attempt=1, **part(3))
    world.run()


def test_the_part_that_loses_least_moves_and_the_gang_gets_the_whole_node() -> None:
    world = two_parts()
    world.add_gang("head", 1)
    world.run()
    assert (leaving(world, "right"), leaving(world, "left")) == ("Moved", "")
    leave(world, "right")
    assert set(world.nodes_of("right").values()) == {"a"}
    assert set(world.nodes_of("head").values()) == {"b"}


def test_the_next_plans_ask_no_one_else_while_a_gang_moves() -> None:
    world = two_parts()
    world.add_gang("head", 1)
    for _ in range(3):
        world.now += 1.0
        world.run()
    assert leaving(world, "left") == ""


@pytest.mark.parametrize(
    "facts",
    [
        msgspec.structs.replace(SAVES, restartable=False),
        msgspec.structs.replace(SAVES, asked=3),
        msgspec.structs.replace(SAVES, ended="Succeeded"),
    ],
    ids=["not restartable", "moved too often", "about to go"],
)
def test_other_parts_stay(facts: JobFacts) -> None:
    world = two_parts()
    world.set_job("left", facts)
    world.set_job("right", facts)
    world.add_gang("head", 1)
    world.run()
    assert (leaving(world, "right"), leaving(world, "left")) == ("", "")


def test_parts_of_higher_priority_stay() -> None:
    world = two_parts()
    world.add_gang("head", 1, priority=-5)
    world.run()
    assert (leaving(world, "right"), leaving(world, "left")) == ("", "")


def test_parts_do_not_move_for_a_borrower() -> None:
    world = two_parts()
    add(world, "head", 1, "red", borrows=True)
    world.run()
    assert (leaving(world, "right"), leaving(world, "left")) == ("", "")


def test_parts_stay_if_the_wait_costs_less_than_the_move() -> None:
    world = two_parts(run_s=MOVED_AFTER_S + 60.0)
    world.add_gang("head", 1)
    world.run()
    assert leaving(world, "right") == "", "both end within a minute"


def test_parts_stay_until_they_have_run_for_a_while() -> None:
    world = two_parts()
    world.now -= MOVED_AFTER_S / 2
    world.add_gang("head", 1)
    world.run()
    assert leaving(world, "right") == ""


def test_parts_that_do_not_fit_together_stay() -> None:
    world = two_parts()
    world.add_gang("more", 1, **part(2))
    world.run()
    assert set(world.nodes_of("more").values()) == {"a"}
    world.add_gang("head", 1)
    world.run()
    assert (leaving(world, "right"), leaving(world, "left")) == ("", "")


@pytest.mark.parametrize("policy", ["strict", "easy"])
def test_other_policies_move_nothing(policy: str) -> None:
    world = two_parts()
    world.settings = msgspec.structs.replace(world.settings, policy=policy)
    world.add_gang("head", 1)
    world.run()
    assert leaving(world, "right") == ""


def test_a_part_starts_beside_gangs_that_run_longer() -> None:
    world = World()
    world.add_nodes("a", "b")
    remember(world, {"soon": HOUR_S, "late": 50 * HOUR_S, "middle": 10 * HOUR_S})
    for name in ("soon", "late"):
        world.add_gang(name, 1, **part(6))
        world.run()
    assert set(world.nodes_of("soon").values()) == {"a"}
    world.add_gang("middle", 1, **part(2))
    world.run()
    assert set(world.nodes_of("middle").values()) == {"b"}, "so a is whole again sooner"
