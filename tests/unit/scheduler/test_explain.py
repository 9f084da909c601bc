"""The arithmetic of explanations: counts add up, and the change named is enough."""

from __future__ import annotations

import json
from typing import Any

from muster.api.names import TAINT_PREFLIGHT, TAINT_QUARANTINE
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import from_dict
from muster.scheduler.explain.hypothetical import suppose_ended, suppose_nodes, suppose_placed
from muster.scheduler.explain.why_waiting import Explanation, explain, suppose
from muster.scheduler.queue.backfill import START_SLACK_S
from tests.unit.scheduler.world import GPU, START, World, node


def explained(world: World, gang: str, **options: Any) -> Explanation:
    return explain(world.state.snapshot(), world.gang(gang), now=world.now, **options)


def test_every_node_is_counted_under_one_reason() -> None:
    world = World()
    world.add_nodes("a", "b", "c")
    world.add_gang("other", 1)
    world.run()
    world.set_node(node("d", ready=False))
    world.set_node(node("e", unschedulable=True))
    world.set_node(node("f", taints=[{"key": "bad", "effect": "NoSchedule"}]))
    world.set_node(node("g", gpus=0))
    world.add_gang("train", 3)
    found = explained(world, "train")
    assert (found.why, found.need, found.have) == ("NotEnoughNodes", 3, 2)
    assert {count.text() for count in found.nodes} == {
        "2 free", "1 in use (by default/other)", "1 not ready", "1 cordoned", "1 with taint bad:NoSchedule",
        f"1 too small ({GPU})",
    }  # fmt: skip
    assert sum(count.count for count in found.nodes) == len(world.nodes)
    assert found.summary.startswith("needs 3 nodes, 2 are free")
    assert (found.position, found.queued, found.when) == (1, 1, None)
    assert {change.text() for change in found.changes} == {
        "uncordon 1 node (kubectl uncordon NODE)", "1 node ready again", "default/other ends", "+1 node",
        "tolerate taint bad:NoSchedule",
    }  # fmt: skip
    assert json.loads(json.dumps(found.data()))["changes"][0]["text"] == found.changes[0].text()


def test_taints_of_broken_nodes_are_never_suggested_for_toleration() -> None:
    world = World()
    world.add_nodes("a")
    for name, key in (("b", TAINT_QUARANTINE), ("c", TAINT_PREFLIGHT)):
        world.set_node(node(name, taints=[{"key": key, "effect": "NoSchedule"}]))
    world.add_gang("train", 2)
    assert [change.text() for change in explained(world, "train").changes] == ["+1 node"]


def test_a_cordoned_node_is_to_be_uncordoned_and_its_taint_is_not_to_be_tolerated() -> None:
    """Issue 11.24: the API server taints nodes that are cordoned or not ready."""
    world = World()
    taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
    for name in ("a", "b"):
        world.set_node(node(name, unschedulable=True, taints=[taint]))
    world.set_node(node("c", ready=False, taints=[{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]))
    world.add_gang("train", 2)
    found = explained(world, "train")
    assert [change.text() for change in found.changes] == ["uncordon 2 nodes (kubectl uncordon NODE)"]
    assert found.summary.endswith("2 cordoned, 1 not ready; would run with: uncordon 2 nodes (kubectl uncordon NODE)")
    world.add_gang("small", 1)
    assert "1 node ready again" in [change.text() for change in explained(world, "small").changes]


def test_each_change_named_is_enough() -> None:
    world = World()
    world.set_node(node("a", labels={"zone": "x"}))
    world.set_node(node("b", labels={"zone": "y"}))
    world.add_gang("train", 2, nodeSelector={"zone": "x"})
    found = explained(world, "train")
    assert found.why == "MoreThanTheCluster"
    assert [change.text() for change in found.changes] == ["remove nodeSelector zone=x", "+1 node"]
    world.set_node(node("c", labels={"zone": "x"}))
    world.run()
    assert len(world.nodes_of("train")) == 2


def test_explain_considers_the_absence_of_another_gang() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("other", 1)
    world.run()
    world.add_gang("train", 2)
    assert explained(world, "train").waits
    suppose_ended(world.state, world.gang("other"), now=world.now)
    found = explained(world, "train", supposed=True)
    assert (found.waits, found.summary) == (False, "would be placed: there is room for all of it")


def test_supposed_nodes_are_counted_everywhere() -> None:
    world = World()
    world.set_node(node("a", labels={"kubernetes.io/hostname": "a", "zone": "x"}))
    world.set_node(node("b", unschedulable=True))
    world.add_gang("train", 4, nodeSelector={"zone": "x"})
    assert suppose_nodes(world.state, world.gang("train"), 2) == 2
    found = explained(world, "train", supposed=True)
    assert (found.why, found.need, found.have) == ("MoreThanTheCluster", 4, 3)
    assert {count.text() for count in found.nodes} == {"3 free", "1 cordoned"}
    headline = "needs 4 nodes; the cluster has 3. Add 1, or use --nodes 3"
    assert found.summary.startswith(f"{headline}. The cluster's nodes: 1 cordoned")
    assert found.changes[-1].text() == "+1 node"


def test_supposed_nodes_go_to_whom_the_queue_gives_them() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("running", 1)
    world.run()
    world.add_gang("head", 2)
    world.add_gang("next", 2)
    suppose_nodes(world.state, world.gang("next"), 2)
    assert not explained(world, "head", supposed=True).waits
    suppose_placed(world.state, world.gang("next"), now=world.now)
    found = explained(world, "next", supposed=True)
    assert (found.waits, found.need, found.have) == (True, 2, 1)
    assert {count.text() for count in found.nodes} == {
        "2 in use (by default/head)", "1 in use (by default/running)", "1 free",
    }  # fmt: skip
    suppose_nodes(world.state, world.gang("next"), 3)  # one more than the first time
    assert not explained(world, "next", supposed=True).waits


def test_pods_larger_than_every_node_learn_the_size_that_fits() -> None:
    world = World()
    world.add_nodes("a", "b", "c")
    world.set_node(node("small", gpus=4))
    world.add_gang("train", 2, gpus=16)
    found = explained(world, "train")
    assert [(count.text()) for count in found.nodes] == [f"4 too small ({GPU})"]
    text = f"8 {GPU} per node and 2 times the replicas (the largest node has 8)"
    assert [change.text() for change in found.changes] == [f"{text}, and +1 node"]
    assert suppose_nodes(world.state, world.gang("train"), 5) == 0
    world.add_nodes("d")
    found = explained(world, "train")
    assert [change.text() for change in found.changes] == [text]
    assert found.summary.endswith(f"would run with: {text}")
    world.remove_gang("train")
    world.add_gang("as-suggested", 4, gpus=8)
    world.run()
    assert len(world.nodes_of("as-suggested")) == 4


def test_uneven_sizes_are_spread_evenly() -> None:
    world = World()
    world.add_nodes("a", "b", "c")
    world.add_gang("train", 1, gpus=15)
    found = explained(world, "train")
    assert [change.text() for change in found.changes] == [
        f"5 {GPU} per node and 3 times the replicas (the largest node has 8)"
    ]


def test_gang_behind_another_learns_which_and_its_place() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("running", 1)
    world.run()
    for name in ("head", "next", "last"):
        world.add_gang(name, 2)
    found = explained(world, "last")
    assert (found.why, found.head, found.position, found.queued) == ("BehindInQueue", "default/head", 3, 3)
    assert "default/head" in found.summary


def test_gang_short_of_pods_learns_how_many() -> None:
    world = World()
    world.add_nodes("a")
    world.add_member("train", 0, 3)
    found = explained(world, "train")
    assert [change.text() for change in found.changes] == ["2 pods more"]


def test_a_gang_that_does_not_exist_yet_can_be_explained() -> None:
    world = World()
    world.add_nodes("a", "b")
    spec = {"nodeSelector": {"zone": "x"}, "containers": [{"name": "c", "resources": {"limits": {GPU: "8"}}}]}
    pod = from_dict({"metadata": {"name": "idea", "namespace": "default"}, "spec": spec}, Pod)
    gang = suppose(world.state, pod, 2, now=START)
    found = explain(world.state.snapshot(), gang, now=START)
    assert (found.need, found.have) == (2, 0)
    assert "remove nodeSelector zone=x" in [change.text() for change in found.changes]


def test_slots_of_a_gang_take_different_nodes_however_small() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("train", 3, gpus=1)
    world.run()
    found = explained(world, "train")
    assert (found.why, found.need, found.have) == ("MoreThanTheCluster", 3, 2)
    assert found.summary.startswith("needs 3 nodes; the cluster has 2.")
    assert found.changes[-1].text() == "+1 node"
    world.add_gang("other", 2, gpus=1)
    world.add_nodes("c")
    world.run()
    assert len(set(world.nodes_of("train").values())) == 3
    assert len(set(world.nodes_of("other").values())) == 2


def test_a_replacement_does_not_join_another_slot_of_its_gang() -> None:
    world = World()
    world.add_nodes("a", "b", "c")
    world.add_gang("train", 3, gpus=1)
    world.run()
    lost = world.find("train-0-0").spec.node_name
    world.remove_node(lost)
    world.remove_pod("train-0-0")
    world.add_member("train", 0, 3, attempt=1, gpus=1)
    world.run()
    found = explained(world, "train")
    assert (found.why, found.need, found.have) == ("NotEnoughNodes", 1, 0)
    assert [count.text() for count in found.nodes] == ["2 in use (by its other slots)"]
    assert found.changes[0].text() == "+1 node"
    world.add_nodes("d")
    world.run()
    assert world.find("train-0-1").spec.node_name == "d"


def test_slots_of_different_sizes_do_not_share_a_node_either() -> None:
    world = World()
    world.add_nodes("a", "b")
    for slot, gpus in enumerate((1, 1, 2)):
        world.add_member("train", slot, 3, gpus=gpus)
    plan = world.run()
    assert not world.placements
    assert [reason.why for reason in plan.waiting.values()] == ["NotEnoughNodes"]
    found = explained(world, "train")
    assert found.waits
    assert found.have < found.need
    world.add_nodes("c")
    world.run()
    assert len(set(world.nodes_of("train").values())) == 3


def test_the_start_is_an_interval_where_time_limits_say_and_else_unknown() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("running", 2, activeDeadlineSeconds=1000)
    world.run()
    bound = world.placements["default/running"].status.bound_time
    assert bound is not None
    world.add_gang("next", 2)
    world.add_gang("last", 1)
    found = explained(world, "next")
    assert found.when is not None
    latest = bound.timestamp() + START_SLACK_S + 1000 + 30
    assert (found.when.earliest, found.when.latest) == (world.now, latest)
    assert found.lines()[-1].startswith("starts: by 2023-11-14 22:31:")
    assert found.data()["when"]["latest"] == latest
    behind = explained(world, "last")
    assert (behind.why, behind.when, behind.lines()[-1]) == ("BehindInQueue", None, "starts: unknown")
    assert behind.data()["when"] is None
    world.now = latest + 1
    assert explained(world, "next").lines()[-1].startswith("starts: any moment")
    world.add_nodes("c", "d")
    assert "starts" not in " ".join(explained(world, "next").lines())


def test_the_arithmetic_is_in_nodes_and_nothing_is_said_twice() -> None:
    """Issue 11.25."""
    world = World()
    world.add_nodes("a", "b", "c", "d", gpus=0)
    world.add_gang("train", 9, whole="any", gpus=0)
    found = explained(world, "train")
    assert found.lines() == [
        "default/train: needs 9 nodes; the cluster has 4. Add 5, or use --nodes 4",
        "  4 free",
        "queue: 1 of 1",
        "starts: unknown",
    ]
    assert found.summary == "needs 9 nodes; the cluster has 4. Add 5, or use --nodes 4"
