"""Gangs of lower priority yield: their Placement asks them to, and others are bound after their last pod is gone."""

from __future__ import annotations

import asyncio

import pytest

from muster.api.placement import Placement
from muster.api.training_job import TrainingJob, TrainingJobSpec
from muster.kube.errors import NotFound
from muster.kube.objects.meta import ObjectMeta
from muster.scheduler.plan import Settings
from tests.scenarios.scheduler.conftest import Cluster
from tests.support.priorityclasses import make_priority_class
from tests.support.waiting import until

CLASSES = {"muster-test-low": -100, "muster-test-high": 1000}


@pytest.fixture(autouse=True)
async def classes(cluster: Cluster) -> None:
    for name, value in CLASSES.items():
        await make_priority_class(cluster.client, name, value)


async def add_job(cluster: Cluster, name: str, size: int, priority_class: str) -> None:
    """A TrainingJob without a live controller, and its pods."""
    spec = TrainingJobSpec(replicas=size, image="none", command=("true",), stop_grace_seconds=0)
    job = await cluster.client.create(
        TrainingJob(metadata=ObjectMeta(name=name, namespace=cluster.namespace), spec=spec)
    )
    for slot in range(size):
        pod = cluster.pod(name, slot, size, spec={"priorityClassName": priority_class})
        pod["metadata"]["annotations"]["muster.dev/gang-uid"] = job.uid
        await cluster.client.create(pod)


async def _leaving(cluster: Cluster, name: str) -> Placement | None:
    placement = await cluster.placement(name)
    return placement if placement is not None and placement.status.phase == "Preempting" else None


async def _gone(cluster: Cluster, name: str) -> bool:
    try:
        await cluster.client.get(Placement, name, cluster.namespace)
    except NotFound:
        return True
    return False


async def test_balloons_are_preempted_for_a_gang(cluster: Cluster) -> None:
    await cluster.add_nodes(3)
    cluster.schedule()
    for number in range(3):
        balloon = cluster.pod(f"balloon-{number}", 0, 1, spec={"priorityClassName": "muster-test-low"})
        balloon["metadata"]["labels"] = {"muster.dev/balloon": "true"}
        await cluster.client.create(balloon)

    async def full() -> bool:
        return sum(bool(pod.spec.node_name) for pod in await cluster.pods()) == 3

    await until("the balloons fill the nodes", full)
    await cluster.add_gang("train", 2)
    await cluster.until_bound("train", 2)
    assert sum(pod.name.startswith("balloon") for pod in await cluster.pods()) == 1


async def test_job_is_notified_and_its_nodes_are_bound_when_its_pods_are_gone(cluster: Cluster) -> None:
    await cluster.add_nodes(3)
    cluster.schedule()
    await add_job(cluster, "low", 3, "muster-test-low")
    await cluster.until_bound("low", 3)
    await add_job(cluster, "high", 2, "muster-test-high")
    placement: Placement = await until("the job is asked to leave", lambda: _leaving(cluster, "low"))
    assert placement.status.reason == "Preempted"
    assert f"{cluster.namespace}/high (priority 1000)" in placement.status.message
    await asyncio.sleep(0.2)  # time to do wrong in: nothing may be bound while the pods are there
    assert await cluster.bound("high") == {}
    await cluster.kill("low")  # as the job's controller does
    await cluster.until_bound("high", 2)
    await until("the plan of the job that left is gone", lambda: _gone(cluster, "low"))


async def test_a_job_whose_controller_is_dead_and_a_new_leader_in_the_middle(cluster: Cluster) -> None:
    await cluster.add_nodes(3)
    _, first = cluster.schedule()
    await add_job(cluster, "low", 3, "muster-test-low")
    await cluster.until_bound("low", 3)
    await add_job(cluster, "high", 3, "muster-test-high")

    async def planned() -> bool:
        placement = await cluster.placement("high")
        return placement is not None and placement.spec.preempting

    await until("the plan is written", planned)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    cluster.schedule(settings=Settings(leave_slack_s=1.0))
    await cluster.until_bound("high", 3)
    assert await cluster.bound("low") == {}
