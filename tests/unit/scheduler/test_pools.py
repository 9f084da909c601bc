"""Pools are exclusive or not used, and what asks for devices goes nowhere else."""

from __future__ import annotations

from typing import Any

import pytest

from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import from_dict
from muster.scheduler.explain.hypothetical import suppose_nodes
from muster.scheduler.explain.why_waiting import explain
from tests.unit.scheduler.world import GPU, World, node

TAINT = {"key": "muster.dev/pool", "value": "a", "effect": "NoSchedule"}
TOLERATES: dict[str, Any] = {"tolerations": [{"key": "muster.dev/pool", "operator": "Exists", "effect": "NoSchedule"}]}


def in_pool(name: str, **options: Any) -> Node:
    return node(name, labels={"muster.dev/pool": "a"}, **{"taints": [TAINT], **options})


def why_not(world: World, gang: str) -> set[str]:
    found = explain(world.state.snapshot(), world.gang(gang), now=world.now)
    assert found.waits
    return {count.text() for count in found.nodes}


def default_pod(world: World, name: str, on: str, *, gpus: int) -> Pod:
    """A pod that kube-scheduler placed."""
    body = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {
            "schedulerName": "default-scheduler",
            "nodeName": on,
            "containers": [{"name": "c", "resources": {"limits": {"cpu": "1", **({GPU: str(gpus)} if gpus else {})}}}],
        },
        "status": {"phase": "Running"},
    }
    pod = from_dict(body, Pod)
    world.state.set_pod(pod, world.now)
    world.pods[pod.uid] = pod
    return pod


def test_without_pools_gangs_go_anywhere() -> None:
    world = World()
    world.add_nodes("a", "b")
    world.add_gang("train", 2, **TOLERATES)
    world.run()
    assert set(world.nodes_of("train").values()) == {"a", "b"}


def test_with_pools_what_asks_for_devices_goes_nowhere_else() -> None:
    world = World()
    world.add_nodes("outside")
    world.set_node(in_pool("inside"))
    world.add_gang("train", 2, **TOLERATES)
    world.run()
    assert world.nodes_of("train") == {}
    assert why_not(world, "train") == {"1 outside the pools (without label muster.dev/pool)", "1 free"}
    world.add_gang("no-devices", 2, containers=[{"name": "c"}])
    world.add_gang("small", 1, **TOLERATES)
    world.run()
    assert set(world.nodes_of("small").values()) == {"inside"}
    world.add_pod("single", dict(TOLERATES))
    world.run()
    assert not world.find("single").spec.node_name


def test_pods_without_devices_need_no_pool() -> None:
    world = World()
    world.add_nodes("outside")
    world.set_node(in_pool("inside"))
    world.add_gang("prepare", 1, containers=[{"name": "c"}])
    world.run()
    assert set(world.nodes_of("prepare").values()) == {"outside"}


def test_gang_that_does_not_tolerate_the_pool_learns_it() -> None:
    world = World()
    world.set_node(in_pool("inside"))
    world.add_gang("foreign", 1)
    world.run()
    assert world.nodes_of("foreign") == {}
    found = explain(world.state.snapshot(), world.gang("foreign"), now=world.now)
    assert [count.text() for count in found.nodes] == ["1 with taint muster.dev/pool=a:NoSchedule"]
    assert found.changes[0].text() == "tolerate taint muster.dev/pool:NoSchedule"


@pytest.mark.parametrize("taints", [[], [{**TAINT, "effect": "PreferNoSchedule"}]])
def test_a_pool_node_without_the_taint_is_refused(taints: list[dict[str, str]]) -> None:
    world = World()
    world.set_node(in_pool("labelled", taints=taints))
    world.add_gang("train", 1, **TOLERATES)
    world.run()
    assert why_not(world, "train") == {
        "1 in a pool that is not exclusive (label muster.dev/pool without taint muster.dev/pool:NoSchedule)"
    }
    world.set_node(in_pool("labelled"))
    world.run()
    assert world.nodes_of("train") == {0: "labelled"}


def test_a_pool_node_whose_devices_others_use_is_refused_until_they_have_gone() -> None:
    world = World()
    world.set_node(in_pool("mixed"))
    default_pod(world, "notebook", "mixed", gpus=1)
    world.add_gang("train", 1, gpus=4, **TOLERATES)
    world.run()
    assert world.nodes_of("train") == {}, "there would be room"
    assert why_not(world, "train") == {"1 in a pool that is not exclusive (pods of other schedulers use its devices)"}
    world.remove_pod("notebook")
    default_pod(world, "log-shipper", "mixed", gpus=0)
    world.run()
    assert world.nodes_of("train") == {0: "mixed"}


def test_when_the_last_pool_node_goes_gangs_go_anywhere_again() -> None:
    world = World()
    world.add_nodes("outside")
    world.set_node(in_pool("inside", ready=False))
    world.add_gang("train", 1, **TOLERATES)
    world.run()
    assert world.nodes_of("train") == {}, "a pool that is not ready is a pool"
    world.remove_node("inside")
    world.run()
    assert world.nodes_of("train") == {0: "outside"}


def test_more_nodes_are_supposed_to_be_in_the_pool() -> None:
    world = World()
    world.add_nodes("outside")
    world.set_node(in_pool("inside"))
    world.add_gang("train", 2, **TOLERATES)
    assert suppose_nodes(world.state, world.gang("train"), 1) == 1
    assert not explain(world.state.snapshot(), world.gang("train"), now=world.now, supposed=True).waits
