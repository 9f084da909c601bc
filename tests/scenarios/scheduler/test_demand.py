"""Autoscalers: pods say Unschedulable when the whole gang is approved for more nodes, and not before."""

from __future__ import annotations

from muster.kube.objects.core import Event
from muster.kube.objects.pod import Pod
from tests.scenarios.scheduler.conftest import Cluster
from tests.support.waiting import until


async def unscheduled(cluster: Cluster, gang: str) -> dict[str, str]:
    """Pod -> reason of its condition PodScheduled, where that is False."""
    return {
        pod.name: condition.reason
        for pod in await cluster.pods(gang)
        for condition in pod.status.conditions
        if (condition.type, condition.status) == ("PodScheduled", "False")
    }


async def test_autoscalers_see_a_gang_whole_once_it_is_approved(cluster: Cluster) -> None:
    await cluster.add_nodes(1)
    cluster.schedule()
    await cluster.add_gang("train", 3)

    async def said() -> list[Event]:
        return [event for event in await cluster.events() if event.reason == "FailedScheduling"]

    await until("an event says why it waits", said)
    assert await unscheduled(cluster, "train") == {}

    async def approve(value: str | None, *slots: int) -> None:
        for slot in slots:
            patch = {"metadata": {"annotations": {"muster.dev/scale-up": value}}}
            await cluster.client.patch(Pod, f"train-{slot}-0", patch, namespace=cluster.namespace)

    await approve("approved", 0, 1, 2)
    everything = {f"train-{slot}-0": "Unschedulable" for slot in range(3)}

    async def all_of_it() -> bool:
        return await unscheduled(cluster, "train") == everything

    await until("all of it is demand", all_of_it)
    await approve(None, 1)

    async def none_of_it() -> bool:
        return set((await unscheduled(cluster, "train")).values()) == {"ScaleUpNotApproved"}

    await until("none of it is demand", none_of_it)
    await approve("approved", 1)
    await until("all of it is demand again", all_of_it)
    await cluster.add_nodes(2)
    await cluster.until_bound("train", 3)
    assert await unscheduled(cluster, "train") == {}
