"""Slots of PodGroups, whose pods have no index, as a new leader finds them."""

from __future__ import annotations

from tests.unit.scheduler.foreign import Foreign


def test_a_new_leader_finds_every_pod_in_the_slot_where_it_runs() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c", "d")
    world.set_object("pod-group", "pg", {"minMember": 3})
    for name in ("p2", "p0", "p1"):
        world.grouped("pg", name)
        world.state.snapshot()
    world.run()
    before = {member.name: slot for slot, member in world.gang("pod-group.pg").current.items()}
    assert before == {"p2": 0, "p0": 1, "p1": 2}
    world.forget_all()
    gang = world.gang("pod-group.pg")
    assert {member.name: slot for slot, member in gang.current.items()} == before
    assert gang.holds == {}
    assert world.decide().actions == ()


def test_new_leader_distinguishes_done_pods_from_their_successors() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("pod-group", "pg", {"minMember": 1})
    for number in range(3):
        world.grouped("pg", f"p{number}")
    world.run()
    world.finish("p0")
    world.run()
    assert world.ran_on("p0", "p2") == {"p0": "a", "p2": "a"}
    world.forget_all()
    gang = world.gang("pod-group.pg")
    assert gang.roster is not None
    assert (gang.roster.done, gang.current.keys(), gang.holds) == ({0}, {1, 2}, {})


def test_new_leader_keeps_the_slot_of_a_done_pod_free() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("pod-group", "pg", {"minMember": 1})
    for number in range(4):
        world.grouped("pg", f"p{number}")
    world.run()
    world.finish("p0")
    world.run()
    assert world.ran_on() == {"p0": "a", "p1": "b", "p2": "a"}
    world.forget_all()
    gang = world.gang("pod-group.pg")
    assert gang.roster is not None
    assert (gang.roster.done, gang.holds) == ({0}, {})
    assert {pod.name: pod.slot for pod in gang.pods.values()} == {"p0": 0, "p1": 1, "p2": 2, "p3": 3}
