"""Gangs are placed whole, in order, and say why they wait."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest

from muster.kube.objects.pod import Pod
from muster.scheduler.explain.why_waiting import explain, load_snapshot
from tests.scenarios.scheduler.conftest import Cluster
from tests.support.anyserver import BY_BINDS
from tests.support.waiting import until


async def test_a_gang_of_8_on_10_nodes_is_bound(cluster: Cluster) -> None:
    await cluster.add_nodes(10)
    await cluster.add_gang("train", 8)
    cluster.schedule()
    await cluster.until_bound("train", 8)
    bound = await cluster.bound("train")
    placement = await cluster.placement("train")
    assert placement is not None
    assert len(set(bound.values())) == 8
    assert {f"train-{slot.slot}-0": slot.node for slot in placement.spec.slots} == bound


async def test_every_pod_of_a_gang_has_a_scheduled_event_that_names_its_node(cluster: Cluster) -> None:
    await cluster.add_nodes(3)
    await cluster.add_gang("train", 3)
    cluster.schedule()

    async def reported() -> dict[str, str]:
        events = [event for event in await cluster.events() if event.reason == "Scheduled"]
        return {event.involved_object.uid: event.message for event in events}

    await until("an event for each pod", lambda: _have(reported, 3))
    pods = (await cluster.client.list(Pod, cluster.namespace)).items
    assert await reported() == {
        pod.uid: f"Successfully assigned {cluster.namespace}/{pod.name} to {pod.spec.node_name}" for pod in pods
    }


async def _have(reported: Callable[[], Awaitable[dict[str, str]]], count: int) -> bool:
    return len(await reported()) >= count


@BY_BINDS
async def test_of_two_gangs_that_each_want_the_cluster_one_is_bound_whole_then_the_other(cluster: Cluster) -> None:
    await cluster.add_nodes(4)
    cluster.schedule()
    for slot in range(4):  # interleaved, as two controllers would make them
        await cluster.client.create(cluster.pod("one", slot, 4))
        await cluster.client.create(cluster.pod("two", slot, 4))
    first = await until("one of them bound", lambda: _which_is_bound(cluster))
    second = "two" if first == "one" else "one"
    assert await cluster.bound(second) == {}

    async def said_why() -> bool:
        return any(event.reason == "FailedScheduling" for event in await cluster.events())

    await until("an event says why the other waits", said_why)
    await cluster.kill(first)
    placement = await cluster.placement(first)
    assert placement is not None
    await cluster.client.delete(type(placement), first, namespace=cluster.namespace)
    await cluster.until_bound(second, 4, "the other bound")


async def _which_is_bound(cluster: Cluster) -> str:
    for gang in ("one", "two"):
        if await cluster.is_bound(gang, 4):
            return gang
    return ""


async def test_a_gang_short_of_a_pod_waits_and_then_is_bound(cluster: Cluster) -> None:
    await cluster.add_nodes(3)
    cluster.schedule()
    for slot in range(2):
        await cluster.client.create(cluster.pod("train", slot, 3))
    snapshot = await load_snapshot(cluster.client)
    gang = snapshot.find(cluster.namespace, "train")
    assert gang is not None
    explanation = explain(snapshot, gang, now=time.time())
    assert explanation.why == "WaitingForPods"
    assert "2 of 3" in explanation.summary
    assert await cluster.bound("train") == {}
    await cluster.client.create(cluster.pod("train", 2, 3))
    await cluster.until_bound("train", 3)


async def test_explain_says_what_a_pending_gang_lacks(cluster: Cluster) -> None:
    names = await cluster.add_nodes(4)
    cluster.schedule()
    await cluster.add_gang("busy", 1)
    await cluster.until_bound("busy", 1)
    free = [name for name in names if name not in (await cluster.bound("busy")).values()]
    await cluster.set_ready(free[0], False)
    await cluster.add_gang("large", 3)
    snapshot = await load_snapshot(cluster.client)
    gang = snapshot.find(cluster.namespace, "large")
    assert gang is not None
    explanation = explain(snapshot, gang, now=time.time())
    assert (explanation.need, explanation.have) == (3, 2)
    assert "needs 3 nodes, 2 are free" in explanation.summary
    texts = [count.text() for count in explanation.nodes]
    assert "2 free" in texts
    # One, or more where a node of an earlier test is on its way out.
    assert any(text.partition(" ")[2].startswith("not ready") for text in texts), texts
    assert f"1 in use (by {cluster.namespace}/busy)" in texts
    assert "+1 node" in [change.text() for change in explanation.changes]


@pytest.mark.kubernetes_since("1.34")  # before, the API server drops the field unless a feature gate is set
async def test_a_constraint_that_is_not_supported_is_refused_on_the_pod(cluster: Cluster) -> None:
    await cluster.add_nodes(2)
    cluster.schedule()
    claims = [{"name": "link", "resourceClaimName": "link"}]
    await cluster.add_gang("apart", 2, spec={"resourceClaims": claims})

    async def refused() -> str:
        for pod in await cluster.pods("apart"):
            for condition in pod.status.conditions:
                if condition.type == "PodScheduled" and condition.status == "False":
                    return f"{condition.reason}: {condition.message}"
        return ""

    said = await until("a condition", refused)
    assert said.startswith("NotSupported: ")
    assert "spec.resourceClaims cannot be used yet" in said
    assert await cluster.bound("apart") == {}


async def test_a_single_pod_is_bound_without_a_placement(cluster: Cluster) -> None:
    await cluster.add_nodes(1)
    cluster.schedule()
    pod = cluster.pod("alone", 0, 1, gpus=1)
    del pod["metadata"]["labels"], pod["metadata"]["annotations"]
    await cluster.client.create(pod)

    async def bound() -> bool:
        return bool((await cluster.bound("")).get("alone-0-0"))

    await until("bound", bound)
    assert await cluster.placement("alone") is None


async def test_a_restarted_gang_keeps_its_slots_and_no_filler_takes_one(cluster: Cluster) -> None:
    await cluster.add_nodes(3)
    cluster.schedule()
    await cluster.add_gang("train", 3)
    await cluster.until_bound("train", 3)
    before = await cluster.bound("train")
    await cluster.kill("train")
    await cluster.add_gang("filler", 1, gpus=1)
    await cluster.add_gang("train", 3, attempt=1)
    await cluster.until_bound("train", 3, "bound again")
    after = await cluster.bound("train")
    assert [after[f"train-{slot}-1"] for slot in range(3)] == [before[f"train-{slot}-0"] for slot in range(3)]
    assert await cluster.bound("filler") == {}


async def test_only_the_slot_of_a_lost_node_moves(cluster: Cluster) -> None:
    await cluster.add_nodes(4)
    cluster.schedule()
    await cluster.add_gang("train", 3)
    await cluster.until_bound("train", 3)
    before = await cluster.bound("train")
    await cluster.remove_node(before["train-1-0"])
    await cluster.client.delete(type((await cluster.pods())[0]), "train-1-0", namespace=cluster.namespace, grace_s=0)
    rule = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [before["train-1-0"]]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [rule]}}}
    await cluster.client.create(cluster.pod("train", 1, 3, attempt=1, spec={"affinity": affinity}))
    await cluster.until_bound("train", 3, "bound again")
    after = await cluster.bound("train")
    assert after["train-0-0"] == before["train-0-0"]
    assert after["train-2-0"] == before["train-2-0"]
    assert after["train-1-1"] not in before.values()
