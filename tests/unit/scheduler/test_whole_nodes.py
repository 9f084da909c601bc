"""Issue 11.5: a job that has its nodes to itself shares them with no other pod that Muster places."""

from __future__ import annotations

import pytest

from muster.scheduler.gangs.priority import JobFacts
from muster.scheduler.memo import matcher_for
from muster.scheduler.reasons import NodeWhy, Why
from tests.unit.scheduler.world import GPU, World

NO_GPUS = {"gpus": 0}


def cluster(nodes: int = 2, gpus: int = 0) -> World:
    world = World()
    world.add_nodes(*(f"n{number}" for number in range(nodes)), gpus=gpus)
    return world


def nodes_of(world: World, gang: str) -> set[str]:
    return set(world.nodes_of(gang).values())


def test_two_exclusive_gangs_without_gpus_do_not_share_a_node() -> None:
    world = cluster()
    world.add_gang("first", 2, whole="any", **NO_GPUS)
    world.add_gang("second", 2, whole="any", **NO_GPUS)
    plan = world.run()
    assert nodes_of(world, "first") == {"n0", "n1"}
    assert nodes_of(world, "second") == set()
    assert plan.waiting[world.gang("second").key].why is Why.NOT_ENOUGH_NODES
    world.remove_gang("first")
    world.state.jobs.set("uid-first", JobFacts(ended="Succeeded"))
    world.run()
    assert nodes_of(world, "second") == {"n0", "n1"}


@pytest.mark.parametrize(("first", "second"), [("any", ""), ("", "any")])
def test_an_exclusive_and_a_shared_gang_do_not_share_a_node(first: str, second: str) -> None:
    world = cluster(1)
    world.add_gang("first", 1, whole=first, **NO_GPUS)
    world.add_gang("second", 1, whole=second, **NO_GPUS)
    world.run()
    assert nodes_of(world, "first") == {"n0"}
    assert nodes_of(world, "second") == set()


def test_gangs_that_share_their_nodes_still_do() -> None:
    world = cluster(1)
    for name in ("first", "second"):
        world.add_gang(name, 1, **NO_GPUS)
    world.run()
    assert nodes_of(world, "first") == nodes_of(world, "second") == {"n0"}


def test_a_single_pod_waits_for_an_exclusive_gang_and_the_gang_for_it() -> None:
    world = cluster(1)
    world.add_gang("train", 1, whole="any", **NO_GPUS)
    world.run()
    world.add_pod("board", dict(NO_GPUS))
    world.run()
    assert not world.find("board").spec.node_name
    world.add_nodes("n1", gpus=0)
    world.run()
    assert world.find("board").spec.node_name == "n1"
    world.add_gang("later", 1, whole="any", **NO_GPUS)
    world.run()
    assert nodes_of(world, "later") == set()


def test_pods_of_other_schedulers_and_daemons_do_not_count() -> None:
    world = cluster(1)
    world.add_pod("agent", {**NO_GPUS, "schedulerName": "default-scheduler", "nodeName": "n0"})
    world.add_gang("train", 1, whole="any", **NO_GPUS)
    world.run()
    assert nodes_of(world, "train") == {"n0"}


def test_an_exclusive_gang_with_half_of_the_gpus_keeps_the_other_half() -> None:
    world = cluster(1, gpus=8)
    world.add_gang("half", 1, whole=f"{GPU}=8", gpus=4)
    world.add_gang("other", 1, gpus=4)
    world.run()
    assert nodes_of(world, "half") == {"n0"}
    assert nodes_of(world, "other") == set()


def test_a_lower_priority_gang_that_shares_the_node_leaves_for_an_exclusive_one() -> None:
    world = cluster(1)
    world.add_gang("low", 1, **NO_GPUS)
    world.run()
    world.add_gang("urgent", 1, whole="any", priority=10, **NO_GPUS)
    world.run()
    assert nodes_of(world, "urgent") == {"n0"}


def test_a_restarted_member_gets_its_own_node_back() -> None:
    world = cluster(2)
    world.add_gang("train", 2, whole="any", **NO_GPUS)
    world.run()
    before = nodes_of(world, "train")
    world.add_member("train", 1, 2, attempt=1, whole="any", **NO_GPUS)
    world.remove_pod("train-1-0")
    world.add_gang("behind", 1, **NO_GPUS)
    world.run()
    assert nodes_of(world, "train") == before
    assert nodes_of(world, "behind") == set()


@pytest.mark.parametrize(("whole", "gpus", "fits"), [(8, 8, True), (4, 4, False), (0, 0, False)])
def test_a_gang_uses_only_nodes_of_its_gpu_count(whole: int, gpus: int, fits: bool) -> None:
    world = cluster(1, gpus=8)
    world.add_gang("train", 1, whole=f"{GPU}={whole}", gpus=gpus)
    world.run()
    assert nodes_of(world, "train") == ({"n0"} if fits else set())
    if not fits:
        snapshot = world.state.snapshot()
        (bucket,) = snapshot.buckets.values()
        (cls,) = world.gang("train").counts
        reason = matcher_for(snapshot).match(cls, bucket.node_class).reason
        assert reason is not None
        assert reason.why is NodeWhy.OTHER_GPU_COUNT
