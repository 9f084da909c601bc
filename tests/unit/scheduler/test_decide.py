"""Exact plans: what is decided, in which order, and why the rest waits."""

from __future__ import annotations

from muster.api.validate import NO_CLAIMS
from muster.scheduler.gangs.placements import timestamp
from muster.scheduler.plan import Bind, MarkBound, Refuse, WritePlacement
from muster.scheduler.reasons import Reason, Why
from tests.unit.scheduler.world import World, reason_of


def test_a_placement_is_written_before_the_first_bind_and_marked_bound_after_the_last() -> None:
    world = World()
    world.add_nodes("a", "b", "c")
    world.add_gang("train", 2)

    (write,) = world.decide().actions
    assert isinstance(write, WritePlacement)
    assert write.create
    assert [(s.slot, s.node, s.node_uid) for s in write.placement.spec.slots] == [(0, "a", "uid-a"), (1, "b", "uid-b")]
    assert write.placement.spec.bind_deadline == timestamp(world.now + 30)
    world.carry_out(write)

    binds = world.decide().actions
    assert [(b.pod, b.node, b.slot) for b in binds if isinstance(b, Bind)] == [
        ("train-0-0", "a", 0),
        ("train-1-0", "b", 1),
    ]
    assert len(binds) == 2
    for bind in binds:
        world.carry_out(bind)

    (mark,) = world.decide().actions
    assert isinstance(mark, MarkBound)
    world.carry_out(mark)
    assert world.decide().actions == ()


def test_a_gang_waits_until_all_its_pods_are_there() -> None:
    world = World()
    world.add_nodes("a", "b", "c", "d")
    for slot in range(3):
        world.add_member("train", slot, 4)
    plan = world.run()
    assert plan.waiting[world.gang("train").key] == Reason(Why.WAITING_FOR_PODS, 4, 3)
    assert "3 of 4" in plan.waiting[world.gang("train").key].text()
    world.add_member("train", 3, 4)
    world.run()
    assert len(world.nodes_of("train")) == 4


def test_a_gang_that_does_not_fit_gets_nothing() -> None:
    world = World()
    world.add_nodes("a", "b", "c")
    world.add_gang("first", 2)
    world.run()
    world.add_gang("second", 2)
    plan = world.run()
    assert world.placements.keys() == {"default/first"}
    assert plan.waiting[world.gang("second").key] == Reason(Why.NOT_ENOUGH_NODES, 2, 1)


def test_higher_priority_goes_first_then_earlier_arrival() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("early", 2, priority=0)
    world.add_gang("late", 2, priority=0)
    world.add_gang("urgent", 2, priority=100)
    plan = world.run()
    assert world.placements.keys() == {"default/urgent"}
    assert reason_of(plan, world, "early") == "NotEnoughNodes"
    assert reason_of(plan, world, "late") == "BehindInQueue"
    world.remove_gang("urgent")
    world.now += 601
    world.run()
    assert world.placements.keys() == {"default/early"}


def test_a_waiting_head_keeps_the_nodes_it_could_use_from_smaller_gangs_behind_it() -> None:
    world = World()
    world.add_nodes("a", "b", "c")
    world.add_gang("running", 2)
    world.run()
    world.add_gang("head", 2)
    world.add_gang("small", 1)
    plan = world.run()
    assert "default/small" not in world.placements
    assert reason_of(plan, world, "small") == "BehindInQueue"


def test_gangs_behind_a_waiting_head_use_nodes_it_could_not() -> None:
    world = World()
    world.add_nodes("a", labels={"zone": "x"})
    world.add_nodes("b", labels={"zone": "y"})
    world.add_gang("running", 1, nodeSelector={"zone": "x"})
    world.run()
    world.add_gang("head", 1, nodeSelector={"zone": "x"})
    world.add_gang("other", 1, nodeSelector={"zone": "y"})
    world.run()
    assert world.nodes_of("other") == {0: "b"}
    assert world.nodes_of("head") == {}


def test_gang_larger_than_the_cluster_blocks_no_other() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("huge", 3)
    world.add_gang("small", 2)
    plan = world.run()
    assert len(world.nodes_of("small")) == 2
    assert plan.waiting[world.gang("huge").key] == Reason(Why.MORE_THAN_THE_CLUSTER, 3, 2)


def test_unsupported_pod_is_refused_by_name() -> None:
    world = World()
    world.add_nodes("a")
    odd = {"matchExpressions": [{"key": "app", "operator": "Like", "values": ["a*"]}]}
    rules = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone", "labelSelector": odd}]}
    for name, spec, field in (
        ("one", {"affinity": {"podAntiAffinity": rules}}, "an operator in a selector of spec.affinity.podAntiAffinity"),
        ("two", {"affinity": {"podAffinity": rules}}, "an operator in a selector of spec.affinity.podAffinity"),
        ("three", {"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "Maybe"}]},
         "whenUnsatisfiable Maybe of spec.topologySpreadConstraints"),
        ("five", {"schedulingGroup": {"other": "x"}}, "spec.schedulingGroup"),
    ):  # fmt: skip
        world.add_pod(name, spec)
        refusals = [action for action in world.decide().actions if isinstance(action, Refuse) and action.pod == name]
        assert len(refusals) == 1
        assert refusals[0].reason.text() == f"pod {name}: {field} is not supported yet by schedulerName muster"
    assert not any(isinstance(action, Bind) for action in world.decide().actions)


def test_claims_of_dra_drivers_are_refused_with_what_to_do_instead() -> None:
    """Issue 11.8."""
    world = World()
    world.add_nodes("a")
    world.add_pod("claims", {"resourceClaims": [{"name": "gpu"}]})
    (refusal,) = world.decide().actions
    assert isinstance(refusal, Refuse)
    assert refusal.reason.text() == f"pod claims: spec.resourceClaims {NO_CLAIMS}"


def test_gated_and_mislabelled_gangs_wait_with_a_reason() -> None:
    world = World()
    world.add_nodes("a", "b", "c", "d")
    world.add_gang("gated", 1, schedulingGates=[{"name": "example.com/wait"}])
    world.add_member("torn", 0, 2)
    world.add_member("torn", 1, 3)
    world.add_pod("odd", labels={"muster.dev/gang": "odd"}, annotations={"muster.dev/gang-size": "2"})
    plan = world.decide()
    assert reason_of(plan, world, "gated") == "SchedulingGated"
    assert reason_of(plan, world, "torn") == "InvalidGang"
    assert "muster.dev/slot" in plan.waiting[world.gang("odd").key].text()


def test_pods_of_part_of_a_node_are_packed_so_that_nodes_stay_whole() -> None:
    world = World()
    world.add_nodes("a", "b", "c")
    for number in range(8):
        world.add_pod(f"small-{number}", {"gpus": 1})
        world.run()
    assert {pod.spec.node_name for pod in world.pods.values()} == {"a"}
    world.add_gang("whole", 2)
    world.run()
    assert sorted(world.nodes_of("whole").values()) == ["b", "c"]


def test_a_pod_without_use_for_gpus_prefers_nodes_without() -> None:
    world = World()
    world.add_nodes("a")
    world.add_nodes("b", gpus=0)
    world.add_pod("cpu", {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]})
    world.run()
    assert world.find("cpu").spec.node_name == "b"


def test_members_with_different_templates_are_placed_together_or_not_at_all() -> None:
    world = World()
    world.add_nodes("a")
    world.add_nodes("b", gpus=0)
    world.add_member("mixed", 0, 2, gpus=8)
    world.add_member("mixed", 1, 2, containers=[{"name": "c", "resources": {"requests": {"cpu": "95500m"}}}])
    world.run()
    assert world.nodes_of("mixed") == {0: "a", 1: "b"}
    world.add_member("again", 0, 2, gpus=8)
    world.add_member("again", 1, 2, containers=[{"name": "c", "resources": {"requests": {"cpu": "1"}}}])
    world.run()
    assert world.nodes_of("again") == {}


def test_a_job_that_asks_to_go_first_does_among_those_of_its_priority() -> None:
    world = World()
    world.add_nodes("a")
    world.add_gang("first", 1)
    world.now += 1
    world.add_pod(
        "urgent-0-0",
        labels={"muster.dev/gang": "urgent", "muster.dev/slot": "0"},
        annotations={
            "muster.dev/gang-size": "1",
            "muster.dev/gang-uid": "uid-urgent",
            "muster.dev/attempt": "0",
            "muster.dev/priority": "5",
        },
    )
    world.now += 1
    world.add_gang("higher", 1, priority=1)
    order = sorted((world.gang(name) for name in ("first", "urgent", "higher")), key=lambda gang: gang.order)
    assert [gang.name for gang in order] == ["higher", "urgent", "first"]
    world.run()
    assert list(world.nodes_of("higher").values()) == ["a"]
