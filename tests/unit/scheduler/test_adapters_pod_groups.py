"""PodGroups as gangs, Coscheduling's and the native ones: whole at their minimum, further pods join."""

from __future__ import annotations

from muster.scheduler.plan import DeletePlacement
from muster.scheduler.reasons import Reason, Why
from tests.unit.scheduler.foreign import Foreign, placements


def test_members_of_foreign_gangs_share_nodes() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("pod-group", "pg", {"minMember": 4})
    for number in range(4):
        world.add_pod(f"p{number}", {"gpus": 2}, labels={"scheduling.x-k8s.io/pod-group": "pg"})
    world.run()
    assert set(world.ran_on().values()) == {"a"}


def test_a_gang_waits_for_its_object_and_says_which() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    for name in ("p0", "p1"):
        world.grouped("pg", name)
    reason = world.waits("pod-group.pg")
    assert reason is not None
    assert reason.why is Why.WAITING_FOR_WORKLOAD
    assert "PodGroup default/pg (scheduling.x-k8s.io/v1alpha1)" in reason.text()
    assert "pods so far: 2" in reason.text()
    world.set_object("pod-group", "pg", {"minMember": 2})
    world.run()
    assert world.ran_on().keys() == {"p0", "p1"}
    assert list(world.placements) == ["default/pod-group.pg"]


def test_pods_of_a_native_group_go_together() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("podgroup", "pg", {"schedulingPolicy": {"gang": {"minCount": 2}}})
    world.add_pod("p0", {"schedulingGroup": {"podGroupName": "pg"}})
    assert world.waits("podgroup.pg") == Reason(Why.WAITING_FOR_PODS, 2, 1)
    world.add_pod("p1", {"schedulingGroup": {"podGroupName": "pg"}})
    world.run()
    assert len(world.ran_on()) == 2


def test_an_elastic_gang_starts_with_its_minimum_and_the_rest_joins_when_there_is_room() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    world.set_object("pod-group", "pg", {"minMember": 2})
    for number in range(5):
        world.grouped("pg", f"p{number}")
    assert placements(world.decide()) == [{0: "a", 1: "b"}]
    world.run()
    assert world.ran_on().keys() == {"p0", "p1", "p2"}
    assert world.placements["default/pod-group.pg"].spec.size == 3
    world.add_nodes("d")
    world.run()
    assert world.ran_on().keys() == {"p0", "p1", "p2", "p3"}
    assert world.decide().actions == ()


def test_the_rest_never_starts_without_the_minimum() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("pod-group", "pg", {"minMember": 3})
    for number in range(5):
        world.grouped("pg", f"p{number}")
    plan = world.run()
    assert world.ran_on() == {}
    assert plan.waiting[world.gang("pod-group.pg").key] == Reason(Why.MORE_THAN_THE_CLUSTER, 3, 2)


def test_a_pod_beyond_the_minimum_stands_in_for_a_member_that_went_before_the_start() -> None:
    world = Foreign()
    world.set_object("pod-group", "pg", {"minMember": 2})
    for number in range(3):
        world.grouped("pg", f"p{number}")
    world.run()
    world.remove_pod("p0")
    world.add_nodes("a", "b")
    world.run()
    assert world.ran_on().keys() == {"p1", "p2"}


def test_pods_beyond_the_minimum_never_take_what_a_gang_waits_for() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    world.set_object("pod-group", "pg", {"minMember": 1})
    world.grouped("pg", "p0")
    world.run()
    world.now += 1
    world.add_gang("head", 3)
    world.grouped("pg", "p1")
    plan = world.run()
    assert world.ran_on().keys() == {"p0"}
    assert plan.waiting[world.gang("head").key].why is Why.NOT_ENOUGH_NODES
    assert world.gang("pod-group.pg").key not in plan.waiting


def test_pod_beyond_the_minimum_rejoins_after_a_lost_node_without_delaying_others() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("pod-group", "pg", {"minMember": 1})
    world.grouped("pg", "p0")
    world.grouped("pg", "p1")
    world.run()
    lost = world.ran_on("p1")["p1"]
    world.remove_pod("p1")
    world.remove_node(lost)
    world.grouped("pg", "p1")
    world.run()
    assert world.placements["default/pod-group.pg"].spec.size == 1
    world.add_gang("next", 1)
    world.add_nodes("c", "d")
    world.run()
    assert world.nodes_of("next").keys() == {0}
    assert world.ran_on("p0", "p1").keys() == {"p0", "p1"}


def test_an_object_made_again_under_its_name_is_another_gang() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    first = world.set_object("pod-group", "pg", {"minMember": 2})
    for name in ("p0", "p1"):
        world.grouped("pg", name)
    world.run()
    world.remove_object("pod-group", "pg")
    second = world.set_object("pod-group", "pg", {"minMember": 2})
    assert first.ref.uid != second.ref.uid
    world.grouped("pg", "q0")
    world.grouped("pg", "q1")
    assert world.waits("pod-group.pg") == Reason(Why.OLD_PLACEMENT)
    for name in ("p0", "p1"):
        world.remove_pod(name)
    world.run()
    assert world.ran_on().keys() == {"q0", "q1"}
    assert world.placements["default/pod-group.pg"].spec.gang_uid == second.ref.uid


def test_a_gang_whose_object_is_gone_does_not_start_and_one_half_bound_is_bound() -> None:
    world = Foreign()
    world.add_nodes("a", "b", "c")
    for name in ("pg", "later"):
        world.set_object("pod-group", name, {"minMember": 2})
        world.grouped(name, f"{name}-0")
    world.grouped("pg", "pg-1")
    for _ in range(2):  # the placement, then one bind
        world.carry_out(world.decide().actions[0])
    for name in ("pg", "later"):
        world.remove_object("pod-group", name)
    world.carry_out(DeletePlacement("", world.placements["default/pod-group.pg"], "collected with its object"))
    world.grouped("later", "later-1")
    world.run()
    assert world.ran_on().keys() == {"pg-0", "pg-1"}
    assert world.placements["default/pod-group.pg"].metadata.owner_references == ()
    reason = world.waits("pod-group.later")
    assert reason is not None
    assert reason.why is Why.WAITING_FOR_WORKLOAD


def test_a_slot_whose_pod_is_done_and_gone_takes_no_room_while_others_wait() -> None:
    world = Foreign()
    world.add_nodes("a", "b")
    world.set_object("pod-group", "pg", {"minMember": 1})
    for number in range(4):
        world.grouped("pg", f"p{number}")
    world.run()
    world.finish("p0")
    world.run()
    world.remove_pod("p0")
    world.run()
    assert world.gang("pod-group.pg").holds == {}
    world.remove_pod("p2")
    world.run()
    assert world.ran_on() == {"p1": "b", "p3": "a"}
