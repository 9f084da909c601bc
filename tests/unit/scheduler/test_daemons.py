"""Room for pods of DaemonSets that have yet to come to a node."""

from __future__ import annotations

from typing import Any

from muster.kube.objects.struct import from_dict
from muster.scheduler.nodes.daemons import DaemonSet
from tests.unit.scheduler.world import World, node, reason_of


def daemons(name: str = "agent", **spec: Any) -> DaemonSet:
    container = {"name": "c", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"containers": [container], **spec}}
    meta = {"name": name, "namespace": "kube-system", "uid": f"uid-{name}"}
    return from_dict({"metadata": meta, "spec": {"template": template}}, DaemonSet)


def come(world: World, to: str, name: str = "agent") -> None:
    """The DaemonSet's pod is bound to the node by another scheduler."""
    owner = {"kind": "DaemonSet", "name": name, "uid": f"uid-{name}", "apiVersion": "apps/v1", "controller": True}
    spec = {"gpus": 0, "schedulerName": "default-scheduler", "nodeName": to}
    world.add_pod(f"{name}-{to}", spec, owners=[owner])


def whole(cpu: int) -> dict[str, Any]:
    return {"containers": [{"name": "c", "resources": {"requests": {"cpu": str(cpu)}}}]}


def test_room_is_kept_until_the_pod_has_come() -> None:
    world = World()
    world.state.set_daemons(daemons())
    world.add_nodes("a", room={"cpu": "4"})
    world.add_gang("train", 1, **whole(4))
    assert reason_of(world.run(), world, "train") == "MoreThanTheCluster"
    world.add_gang("smaller", 1, **whole(3))
    world.run()
    assert world.nodes_of("smaller") == {0: "a"}


def test_a_pod_that_came_takes_the_room_that_was_kept_for_it() -> None:
    world = World()
    world.state.set_daemons(daemons())
    world.add_nodes("a", room={"cpu": "4"})
    come(world, "a")  # it asks for the 1 CPU that its DaemonSet says
    world.add_pod("pod", whole(3))
    world.run()
    assert world.find("pod").spec.node_name == "a"


def test_no_room_is_kept_where_the_pod_would_not_run() -> None:
    world = World()
    world.state.set_daemons(daemons(nodeSelector={"disk": "yes"}))
    taint = {"key": "k", "effect": "NoSchedule"}
    world.set_node(node("a", room={"cpu": "4"}))
    world.set_node(node("b", room={"cpu": "4"}, labels={"disk": "yes"}, taints=[taint]))
    world.add_gang("train", 2, tolerations=[{"key": "k", "operator": "Exists"}], **whole(4))
    world.run()
    assert sorted(world.nodes_of("train").values()) == ["a", "b"]


def test_slots_stay_where_they_are_when_a_new_daemonset_finds_no_room() -> None:
    world = World()
    world.add_nodes("a", "b", room={"cpu": "4"})
    world.add_gang("train", 1, **whole(4))
    world.run()
    before = world.nodes_of("train")
    world.state.set_daemons(daemons())
    world.remove_gang("train")
    world.add_gang("train", 1, attempt=1, **whole(4))
    world.run()
    assert world.nodes_of("train") == before


def test_a_daemonset_that_changes_or_goes_is_followed() -> None:
    world = World()
    world.add_nodes("a", room={"cpu": "4"})
    world.state.set_daemons(daemons())
    world.state.set_daemons(daemons("other"))
    world.add_pod("pod", whole(3))
    world.run()
    assert world.find("pod").spec.node_name == ""
    world.state.remove_daemons("uid-other")
    world.run()
    assert world.find("pod").spec.node_name == "a"


def test_a_pod_that_left_is_expected_again() -> None:
    world = World()
    world.add_nodes("a", room={"cpu": "4"})
    world.state.set_daemons(daemons())
    come(world, "a")
    world.remove_pod("agent-a")
    world.add_pod("pod", whole(4))
    world.run()
    assert world.find("pod").spec.node_name == ""
