"""Issue 11 (simulations): a gang that cannot use its slots gives them back, so that other gangs do not starve."""

from __future__ import annotations

from tests.unit.scheduler.teamwork import add, owned
from tests.unit.scheduler.world import World, node


def placed_but_not_bound() -> World:
    """A gang of two has nodes `a` and `b`, and not one of its pods is bound."""
    world = World()
    owned(world, "", "a", "b")
    world.add_gang("train", 2)
    world.carry_out(world.decide().actions[0])
    assert set(world.slots_of("train").values()) == {"a", "b"}
    return world


def restarted() -> World:
    """A gang of two ran on nodes `a` and `b`; its pods were made again and are not bound."""
    world = World()
    owned(world, "", "a", "b")
    world.add_gang("train", 2)
    world.run()
    world.remove_gang("train")
    world.add_gang("train", 2, attempt=1)
    assert set(world.slots_of("train").values()) == {"a", "b"}
    return world


def test_nodes_that_went_to_a_team_before_the_binds_serve_that_team_after_the_deadline() -> None:
    world = placed_but_not_bound()
    owned(world, "blue", "a", "b")
    add(world, "home", 1, "blue")
    world.run()
    assert world.nodes_of("home") == {}, "the gang may still be bound: its deadline is not over"
    world.now += 31
    world.run()
    assert len(world.nodes_of("home")) == 1
    assert world.slots_of("train") == {}


def test_gang_that_gave_its_slots_back_is_placed_when_nodes_come() -> None:
    world = placed_but_not_bound()
    owned(world, "blue", "a", "b")
    world.now += 31
    world.run()
    owned(world, "", "c", "d")
    world.run()
    assert set(world.nodes_of("train").values()) == {"c", "d"}


def test_nodes_that_went_to_a_team_during_a_restart_serve_that_team() -> None:
    world = restarted()
    owned(world, "blue", "a", "b")
    add(world, "home", 1, "blue")
    world.run()
    assert len(world.nodes_of("home")) == 1
    assert world.slots_of("train") == {}


def test_restarted_gang_keeps_its_slots_while_a_node_is_cordoned() -> None:
    world = restarted()
    world.set_node(node("b", unschedulable=True))
    world.add_gang("filler", 1)
    world.run()
    assert world.nodes_of("filler") == {}
    owned(world, "", "b")
    world.run()
    assert set(world.nodes_of("train").values()) == {"a", "b"}


def test_gang_with_a_bound_member_keeps_its_slots() -> None:
    world = restarted()
    world.carry_out(world.decide().actions[0])
    world.carry_out(world.decide().actions[0])
    assert len(world.nodes_of("train")) == 1
    (left,) = {"a", "b"} - set(world.nodes_of("train").values())
    owned(world, "blue", left)
    world.run()
    assert set(world.slots_of("train").values()) == {"a", "b"}


def test_gang_that_lost_a_pod_before_the_binds_does_not_keep_nodes_from_others() -> None:
    world = placed_but_not_bound()
    world.remove_pod("train-1-0")
    world.add_gang("other", 2)
    world.run()
    assert world.nodes_of("other") == {}
    world.now += 31
    world.run()
    assert set(world.nodes_of("other").values()) == {"a", "b"}
