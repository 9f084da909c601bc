"""Issue 11 (simulations): a gang that cannot use its slots gives them back, so that other gangs do not starve."""

from __future__ import annotations

import pytest

from muster.scheduler.plan import Bind
from tests.unit.scheduler.teamwork import add, owned
from tests.unit.scheduler.world import World, node, reason_of


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


def test_nodes_that_went_to_a_team_before_the_binds_serve_that_team() -> None:
    world = placed_but_not_bound()
    owned(world, "blue", "a", "b")
    add(world, "home", 1, "blue")
    world.run()
    assert len(world.nodes_of("home")) == 1


def test_gang_that_was_not_bound_gives_the_rest_of_its_nodes_back_after_the_deadline() -> None:
    world = placed_but_not_bound()
    owned(world, "blue", "b")
    world.run()
    assert set(world.slots_of("train").values()) == {"a", "b"}, "its deadline is not over"
    world.now += 31
    plan = world.run()
    assert world.slots_of("train") == {}
    assert reason_of(plan, world, "train") in ("NotEnoughNodes", "MoreThanTheCluster")


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


def partly_restarted() -> tuple[World, str]:
    """A gang ran on nodes `a` and `b`; one of its pods was made again. Returns the node of that pod's slot, too."""
    world = World()
    owned(world, "", "a", "b")
    world.add_gang("train", 2)
    world.run()
    world.remove_pod("train-1-0")
    world.add_member("train", 1, 2, attempt=1)
    return world, world.slots_of("train")[1]


def test_slot_on_a_node_that_went_to_a_team_keeps_no_room_from_that_team() -> None:
    world, lost = partly_restarted()
    owned(world, "blue", lost)
    add(world, "home", 1, "blue")
    plan = world.run()
    assert set(world.nodes_of("home").values()) == {lost}
    assert reason_of(plan, world, "train") == "NotEnoughNodes"
    assert len(world.nodes_of("train")) == 1, "its other member runs on"
    owned(world, "", "c")
    world.run()
    assert set(world.nodes_of("train").values()) == {"a", "b", "c"} - {lost}


def test_slot_keeps_its_room_again_when_its_node_comes_back() -> None:
    world, lost = partly_restarted()
    owned(world, "blue", lost)
    world.run()
    owned(world, "", lost)
    world.add_gang("filler", 1)
    world.run()
    assert set(world.nodes_of("train").values()) == {"a", "b"}
    assert world.nodes_of("filler") == {}


def bind_in_flight(team: str = "blue") -> tuple[World, Bind]:
    """A pod is being bound to node `a` while that node goes to a team, or stays without one; `home` waits for it."""
    world = World()
    owned(world, "", "a")
    world.add_gang("train", 1)
    world.carry_out(world.decide().actions[0])
    (bind,) = world.decide().actions
    assert isinstance(bind, Bind)
    world.state.begin_bind(bind.uid, bind.node)
    owned(world, team, "a")
    if team:
        add(world, "home", 1, team)
    else:
        world.add_gang("home", 1)
    return world, bind


def test_slot_keeps_its_room_on_a_node_that_went_to_a_team_while_its_pod_is_being_bound() -> None:
    """Fleet seed 990879: the bind took effect, and the node was promised to two gangs."""
    world, bind = bind_in_flight()
    plan = world.run()
    assert world.slots_of("home") == {}
    assert reason_of(plan, world, "home") == "NotEnoughNodes"
    world.bind(bind)
    world.state.end_bind(bind.uid, world.now, node=bind.node)
    world.run()
    assert world.slots_of("home") == {}


def test_slot_frees_its_room_on_a_node_that_went_to_a_team_when_the_bind_fails() -> None:
    world, bind = bind_in_flight()
    world.state.end_bind(bind.uid, world.now, error="refused", retry_at=world.now + 1)
    world.run()
    assert world.nodes_of("home") == {0: "a"}


@pytest.mark.parametrize("bound", [True, False])
def test_bind_in_flight_keeps_its_room_although_the_placement_was_deleted(*, bound: bool) -> None:
    world, bind = bind_in_flight("")
    world.state.remove_placement(world.placements.pop("default/train"))
    world.run()
    assert world.slots_of("home") == {}
    if bound:
        world.bind(bind)
        world.state.end_bind(bind.uid, world.now, node=bind.node)
    else:
        world.remove_pod(bind.pod)
    world.run()
    assert world.slots_of("home") == ({} if bound else {0: "a"})


def test_gang_that_lost_a_pod_before_the_binds_does_not_keep_nodes_from_others() -> None:
    world = placed_but_not_bound()
    world.remove_pod("train-1-0")
    world.add_gang("other", 2)
    world.run()
    assert world.nodes_of("other") == {}
    world.now += 31
    world.run()
    assert set(world.nodes_of("other").values()) == {"a", "b"}


def two_that_lost_a_node(*, both_nowhere: bool) -> World:
    """Two gangs lost a node each and wait for another; the earlier one, at least, has no bound pod."""
    world = World()
    owned(world, "", "a", "b")
    world.add_gang("early", 2)
    world.run()
    owned(world, "", "c", "d")
    world.add_gang("late", 2)
    world.run()
    world.remove_gang("early")
    if both_nowhere:
        world.remove_gang("late")
    else:
        world.remove_pod("late-1-0")
    world.remove_node(world.slots_of("early")[1])
    world.remove_node(world.slots_of("late")[1])
    world.add_gang("early", 2, attempt=1)
    if both_nowhere:
        world.add_gang("late", 2, attempt=1)
    else:
        world.add_member("late", 1, 2, attempt=1)
    return world


def test_gang_without_bound_pods_makes_way_for_one_that_lost_a_node_too() -> None:
    world = two_that_lost_a_node(both_nowhere=False)
    plan = world.run()
    assert len(world.nodes_of("late")) == 2
    assert reason_of(plan, world, "early") in ("NotEnoughNodes", "MoreThanTheCluster")


def test_later_of_two_gangs_without_bound_pods_makes_way() -> None:
    world = two_that_lost_a_node(both_nowhere=True)
    world.run()
    assert len(world.nodes_of("early")) == 2
    assert world.slots_of("late") == {}
