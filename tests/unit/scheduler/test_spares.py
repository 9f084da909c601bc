"""Spare nodes that remediation keeps for a gang: for whom they are closed, and for how long."""

from __future__ import annotations

from muster.api.handover import Handover
from tests.unit.scheduler.world import World, node

QUARANTINE = {"key": "muster.dev/quarantine", "value": "true", "effect": "NoSchedule"}


def broken(world: World, *names: str) -> None:
    for name in names:
        world.set_node(node(name, taints=[QUARANTINE]))


def reported(world: World, handover: Handover) -> None:
    world.state.set_leaving(handover.closed(world.state.stays_for_now))


def test_a_spare_is_closed_to_others_until_its_gang_waits_for_it() -> None:
    world = World()
    world.add_nodes("n0", "n1")
    world.add_gang("moving", 2)
    world.run()
    world.add_nodes("n2", "n3")
    broken(world, "n0", "n1")
    handover = Handover()
    handover.keep({"n2": "default/moving", "n3": "default/moving"})
    world.add_gang("other", 2)
    reported(world, handover)
    world.run()
    assert world.nodes_of("other") == {}
    for name in ("moving-0-0", "moving-1-0"):
        world.remove_pod(name)
    for slot in range(2):
        world.add_member("moving", slot, 2, attempt=1)
    reported(world, handover)
    world.run()
    assert set(world.nodes_of("moving").values()) == {"n2", "n3"}


def test_node_kept_for_a_gang_that_moved_elsewhere_is_open_at_once() -> None:
    world = World()
    world.add_nodes("n0", "n1", "n2", "n3")
    world.add_gang("moved", 2)
    world.run()
    free = sorted({"n0", "n1", "n2", "n3"} - set(world.nodes_of("moved").values()))
    handover = Handover()
    handover.keep(dict.fromkeys(free, "default/moved"))  # as of before it moved
    world.add_gang("other", 2)
    reported(world, handover)
    world.run()
    assert sorted(world.nodes_of("other").values()) == free
