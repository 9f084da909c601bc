"""Which node serves which pod, and what it takes there."""

from __future__ import annotations

from typing import Any

import pytest

from muster.kube.objects.affinity import NodeSelectorRequirement, NodeSelectorTerm
from muster.kube.objects.pod import PodSpec
from muster.kube.objects.resources import pod_request
from muster.kube.objects.storage import PersistentVolumeClaim
from muster.kube.objects.struct import from_dict
from muster.scheduler.pods.volumes import ClaimState, StorageClass, claim_state
from tests.unit.scheduler.world import GPU, World, node, reason_of

ABOVE_3 = {"key": "n", "operator": "Gt", "values": ["3"]}


def required(**term: Any) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [term]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def where(world: World, **spec: Any) -> str:
    """The node a pod of that spec goes to; "" where it waits."""
    world.add_pod("pod", {"gpus": 1, **spec})
    world.run()
    return world.find("pod").spec.node_name


@pytest.mark.parametrize(
    ("bad", "spec"),
    [
        ({"ready": False}, {}),
        ({"unschedulable": True}, {}),
        ({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]}, {}),
        ({"taints": [{"key": "k", "value": "v", "effect": "NoExecute"}]}, {}),
        ({"labels": {"zone": "x"}}, {"nodeSelector": {"zone": "y"}}),
        ({}, {"affinity": required(matchFields=[{"key": "metadata.name", "operator": "NotIn", "values": ["a"]}])}),
        ({}, {"affinity": required(matchFields=[{"key": "metadata.name", "operator": "In", "values": ["b"]}])}),
        ({}, {"affinity": required(matchExpressions=[{"key": "zone", "operator": "Exists"}])}),
        ({"labels": {"n": "3"}}, {"affinity": required(matchExpressions=[ABOVE_3])}),
        ({"gpus": 0}, {}),
        ({"room": {"pods": "0"}}, {}),
        ({"room": {"cpu": "500m"}}, {}),
    ],
)  # fmt: skip
def test_a_node_that_does_not_serve_is_passed_over(bad: dict[str, Any], spec: dict[str, Any]) -> None:
    world = World()
    world.set_node(node("a", **bad))
    assert where(world, **spec) == ""
    world.set_node(node("b", labels={"zone": "y", "n": "4"}))
    world.run()
    assert world.find("pod").spec.node_name == "b"


def test_tolerations_open_tainted_and_cordoned_nodes() -> None:
    taints = [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]
    world = World()
    world.set_node(node("a", taints=taints, unschedulable=True))
    tolerations = [
        {"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"},
        {"key": "node.kubernetes.io/unschedulable", "operator": "Exists"},
    ]
    assert where(world, tolerations=tolerations) == "a"


def test_wishes_order_nodes_but_forbid_none() -> None:
    world = World()
    world.set_node(node("a", taints=[{"key": "k", "effect": "PreferNoSchedule"}]))
    world.set_node(node("b", labels={"fast": "no"}))
    world.set_node(node("c", labels={"fast": "yes"}))
    wish = {"weight": 5, "preference": {"matchExpressions": [{"key": "fast", "operator": "In", "values": ["yes"]}]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}
    placed = []
    for number in range(3):
        world.add_pod(f"pod-{number}", {"gpus": 8, "affinity": affinity})
        world.run()
        placed.append(world.find(f"pod-{number}").spec.node_name)
    assert placed == ["c", "b", "a"]


def test_host_ports_are_taken_once_a_node() -> None:
    world = World()
    world.add_nodes("a", "b")
    container = {"name": "c", "ports": [{"containerPort": 80, "hostPort": 8080}]}
    for number in range(3):
        world.add_pod(f"pod-{number}", {"containers": [container]})
        world.run()
    assert sorted(pod.spec.node_name for pod in world.pods.values()) == ["", "a", "b"]


def test_pods_of_other_schedulers_take_room_and_are_left_alone() -> None:
    world = World()
    world.add_nodes("a")
    world.add_pod("foreign", {"gpus": 4, "schedulerName": "default-scheduler", "nodeName": "a"})
    world.add_pod("theirs", {"gpus": 1, "schedulerName": "default-scheduler"})
    assert where(world, gpus=8) == ""
    assert world.find("theirs").spec.node_name == ""
    world.remove_pod("foreign")
    world.run()
    assert world.find("pod").spec.node_name == "a"


def test_a_pod_needs_the_larger_of_its_init_and_main_containers_and_its_overhead() -> None:
    def limits(cpu: str, **more: Any) -> dict[str, Any]:
        return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}

    spec = from_dict(
        {
            "initContainers": [limits("500m", restartPolicy="Always"), limits("3")],
            "containers": [limits("1"), {"name": "g", "resources": {"limits": {"cpu": "250m", GPU: "8"}}}],
            "overhead": {"cpu": "100m"},
        },
        PodSpec,
    )
    assert pod_request(spec) == {"cpu": 3600, GPU: 8, "pods": 1}


def test_claims_make_a_pod_wait_tie_it_to_nodes_or_refuse_it() -> None:
    world = World()
    world.set_node(node("a", labels={"zone": "x"}))
    world.set_node(node("b", labels={"zone": "y"}))
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    world.add_gang("train", 1, volumes=volumes)
    assert reason_of(world.run(), world, "train") == "WaitingForVolume"
    assert world.state.claims_wanted() == ["default/data"]
    for refused in (ClaimState(found=True, single_pod=True), ClaimState(found=True, by_hand=True)):
        world.state.set_claim("default/data", refused, world.now)
        assert reason_of(world.decide(), world, "train") == "NotSupported"
    term = NodeSelectorTerm(match_expressions=(NodeSelectorRequirement(key="zone", operator="In", values=("y",)),))
    world.state.set_claim("default/data", ClaimState(found=True, bound=True, terms=(term,)), world.now)
    world.run()
    assert world.nodes_of("train") == {0: "b"}


def test_a_claim_whose_volume_is_made_later_ties_its_pod_to_where_that_may_be() -> None:
    world = World()
    world.set_node(node("a", labels={"zone": "x"}))
    world.set_node(node("b", labels={"zone": "y"}))
    storage_class = from_dict(
        {
            "metadata": {"name": "disks"},
            "provisioner": "example.com/disks",
            "volumeBindingMode": "WaitForFirstConsumer",
            "allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["y", "z"]}]}],
        },
        StorageClass,
    )
    claim = from_dict(
        {"metadata": {"name": "data"}, "spec": {"storageClassName": "disks"}, "status": {"phase": "Pending"}},
        PersistentVolumeClaim,
    )
    world.add_gang("train", 1, volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
    world.run()
    world.state.set_claim("default/data", claim_state(claim, None, storage_class), world.now)
    world.run()
    assert world.nodes_of("train") == {0: "b"}


def test_nodes_known_before_any_pod_that_asks_for_their_label_serve_it() -> None:
    world = World()
    world.add_nodes("a", "b", labels={"pool": "research"})
    world.run()
    assert where(world, nodeSelector={"pool": "research"}) in ("a", "b")
