"""What users of other gang schedulers ran into; each test carries the number of the upstream issue."""

from __future__ import annotations

import asyncio

from muster.api.placement import Placement
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from tests.scenarios.scheduler.conftest import Cluster
from tests.scenarios.scheduler.test_adapters import add
from tests.support.anyserver import BY_BINDS
from tests.support.waiting import until


async def _why(cluster: Cluster, count: int) -> bool:
    return sum(event.reason == "FailedScheduling" for event in await cluster.events()) >= count


async def _whole(cluster: Cluster, gangs: list[str], size: int) -> str:
    """The first of the gangs that is bound whole, or ""."""
    for gang in gangs:
        if await cluster.is_bound(gang, size):
            return gang
    return ""


@BY_BINDS
async def test_nine_of_ten_pods_hold_nothing_713(cluster: Cluster) -> None:
    """Coscheduling: 9 of 10 pods keep their resources for ever. Ours: nothing is bound, and others use the nodes."""
    await cluster.add_nodes(10)
    cluster.schedule()
    for slot in range(9):
        await cluster.client.create(cluster.pod("nine", slot, 10))
    await cluster.add_gang("other", 10)
    await cluster.until_bound("other", 10)
    assert await cluster.bound("nine") == {}
    await cluster.client.create(cluster.pod("nine", 9, 10))
    await until("the gang waits as a whole, and says why", lambda: _why(cluster, 1))
    assert await cluster.bound("nine") == {}


async def test_interleaved_gangs_do_not_deadlock_with_room_free_117(cluster: Cluster) -> None:
    """Coscheduling: gangs that arrive interleaved hold parts of each other's room. Ours: one after the other, whole."""
    await cluster.add_nodes(5)
    cluster.schedule()
    gangs = ("one", "two", "three")
    for slot in range(3):
        for gang in gangs:
            await cluster.client.create(cluster.pod(gang, slot, 3))
    left = list(gangs)
    while left:
        first = await until("one of them is bound whole", lambda: _whole(cluster, left, 3))
        left.remove(first)
        assert [len(await cluster.bound(gang)) for gang in left] == [0] * len(left)
        await cluster.kill(first)
        await cluster.client.delete(Placement, first, namespace=cluster.namespace)


@BY_BINDS
async def test_two_gangs_that_want_every_node_do_not_get_half_of_them_each_3373(cluster: Cluster) -> None:
    """Volcano: of two jobs made at once each gets some nodes and waits. Ours: one is bound whole, then the other."""
    await cluster.add_nodes(6)
    cluster.schedule()
    await asyncio.gather(*(cluster.add_gang(gang, 6) for gang in ("one", "two")))
    first = await until("one of them is bound whole", lambda: _whole(cluster, ["one", "two"], 6))
    (second,) = {"one", "two"} - {first}
    await until("the other one waits, and says why", lambda: _why(cluster, 1))
    assert await cluster.bound(second) == {}
    await cluster.kill(first)
    await cluster.client.delete(Placement, first, namespace=cluster.namespace)
    await cluster.until_bound(second, 6)


@BY_BINDS
async def test_a_gang_one_node_short_is_not_begun_930(cluster: Cluster) -> None:
    """Coscheduling: one of two pods is bound though only one node is free. Ours: both wait, and start together."""
    await cluster.add_nodes(2)
    cluster.schedule()
    await add(cluster, "single", {})
    await until("it is bound", lambda: cluster.bound(""))
    await cluster.add_gang("two", 2)
    await until("they wait, and say why", lambda: _why(cluster, 1))
    assert await cluster.bound("two") == {}
    await cluster.client.delete(Pod, "single", namespace=cluster.namespace, grace_s=0)
    await cluster.until_bound("two", 2)


async def test_recreated_pods_are_not_blocked_358(cluster: Cluster) -> None:
    """Coscheduling: recreated pods are denied for a while. Ours: their slots are kept, and theirs at once."""
    await cluster.add_nodes(6)
    cluster.schedule()
    for gang, size in (("first", 2), ("train", 4)):
        await cluster.add_gang(gang, size)
        await cluster.until_bound(gang, size)
    before = await cluster.bound("train")
    await cluster.kill("first")  # other nodes are free now
    await cluster.client.delete(Placement, "first", namespace=cluster.namespace)
    await cluster.kill("train")
    await cluster.add_gang("other", 4)
    await until("the other one waits, and says why", lambda: _why(cluster, 1))
    await cluster.add_gang("train", 4, attempt=1)
    await cluster.until_bound("train", 4, "bound again")
    assert await cluster.bound("train") == {f"{name[:-2]}-1": node for name, node in before.items()}
    assert await cluster.bound("other") == {}


async def test_after_drain_and_uncordon_no_filler_takes_the_slot_5805(cluster: Cluster) -> None:
    """Volcano: a filler takes the drained slot and the gang stays below its minimum. Ours: the slot is kept for it."""
    names = await cluster.add_nodes(3)
    cluster.schedule()
    await cluster.add_gang("train", 3)
    await cluster.until_bound("train", 3)
    where = await cluster.bound("train")
    drained = where["train-1-0"]
    closed = await cluster.client.patch(Node, drained, {"spec": {"unschedulable": True}})
    assert cluster.hearing is not None
    await cluster.hearing.until_heard(closed)
    await cluster.client.delete(Pod, "train-1-0", namespace=cluster.namespace, grace_s=0)
    await cluster.client.create(cluster.pod("train", 1, 3, attempt=1))
    await cluster.add_gang("filler", 1, gpus=1)
    await until("both wait, and say why", lambda: _why(cluster, 2))
    await cluster.client.patch(Node, drained, {"spec": {"unschedulable": False}})
    await cluster.until_bound("train", 3, "bound whole again")
    after = await cluster.bound("train")
    assert sorted(after.values()) == sorted(names)
    assert after["train-1-1"] == drained
    assert await cluster.bound("filler") == {}


async def test_two_failed_nodes_cost_two_members_14244(cluster: Cluster) -> None:
    """Kueue: a second failed node evicts the whole job. Ours: both are replaced at once, the others stay."""
    await cluster.add_nodes(10)
    cluster.schedule()
    await cluster.add_gang("train", 8)
    await cluster.until_bound("train", 8)
    kept = {pod.name: pod.uid for pod in await cluster.pods("train")}
    where = await cluster.bound("train")
    for slot in (2, 5):
        name = f"train-{slot}-0"
        del kept[name]
        await cluster.remove_node(where[name])
        await cluster.client.delete(Pod, name, namespace=cluster.namespace, grace_s=0)
    await asyncio.gather(*(cluster.client.create(cluster.pod("train", slot, 8, attempt=1)) for slot in (2, 5)))
    await cluster.until_bound("train", 8, "bound whole again")
    pods = {pod.name: pod.uid for pod in await cluster.pods("train")}
    assert {name: pods.get(name) for name in kept} == kept
    placement = await cluster.placement("train")
    assert placement is not None
    assert placement.spec.attempt == 1
