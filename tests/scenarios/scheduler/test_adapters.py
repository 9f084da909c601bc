"""Gangs of others, on both API servers where the kind exists there; on the real one, Jobs make the pods."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from muster.api.placement import Placement
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.objects.apps import StatefulSet
from muster.kube.objects.batch import Job
from muster.kube.objects.meta import Resource
from muster.kube.objects.pod import Pod
from muster.kube.objects.scheduling import PodGroup
from muster.kube.objects.workloads import CoschedulingPodGroup, JobSet, MPIJob, RayCluster
from muster.scheduler.explain.why_waiting import explain, load_snapshot
from muster.scheduler.informers import owners as followers
from tests.scenarios.scheduler.conftest import Cluster
from tests.support import workloads
from tests.support.controlplane import StartControlPlane
from tests.support.waiting import until

COSCHEDULING, JOBSET, MPIJOB, RAYCLUSTER = workloads.CUSTOM


@pytest.fixture
async def kinds(cluster: Cluster) -> AsyncIterator[None]:
    """The custom kinds, for one test."""
    await workloads.install(cluster.client, *workloads.CUSTOM)
    yield
    await workloads.uninstall(cluster.client, *workloads.CUSTOM)


async def make(cluster: Cluster, resource: Resource, name: str, spec: dict[str, Any]) -> str:
    """Make an object; returns its UID."""
    kind = next(k for k in (CoschedulingPodGroup, JobSet, MPIJob, RayCluster, PodGroup) if k.RESOURCE is resource)
    body = workloads.object_of(resource, name, cluster.namespace, spec)
    return (await cluster.client.create(body, kind=kind)).uid


async def add(
    cluster: Cluster,
    name: str,
    labels: dict[str, str],
    *,
    owners: tuple[dict[str, Any], ...] = (),
    gpus: int = 8,
    spec: dict[str, Any] | None = None,
) -> None:
    body = cluster.pod("none", 0, 1, gpus=gpus, spec=spec)
    body["metadata"] = {"name": name, "namespace": cluster.namespace, "labels": labels, "ownerReferences": list(owners)}
    await cluster.client.create(body)


async def is_bound(cluster: Cluster, placement: str, *pods: str) -> bool:
    found = await cluster.placement(placement)
    return found is not None and found.status.phase == "Bound" and (await cluster.bound("")).keys() >= set(pods)


async def owner_of(cluster: Cluster, placement: str) -> tuple[str, str]:
    found = await cluster.client.get(Placement, placement, cluster.namespace)
    (owner,) = found.metadata.owner_references
    return owner.kind, owner.uid


async def why(cluster: Cluster, gang: str) -> str:
    snapshot = await load_snapshot(cluster.client)
    found = snapshot.find_workload(cluster.namespace, gang)
    assert found is not None
    said = explain(snapshot, found)
    return f"{said.why}: {said.summary}"


@pytest.mark.usefixtures("kinds")
async def test_a_job_set_is_bound_whole(cluster: Cluster) -> None:
    await cluster.add_nodes(3)
    cluster.schedule()
    part = {"template": {"spec": {"parallelism": 1, "completions": 1, "completionMode": "Indexed"}}}
    parts = [{"name": "driver", **part}, {"name": "workers", "replicas": 2, **part}]
    uid = await make(cluster, JOBSET, "js", {"replicatedJobs": parts})
    names = ["js-driver-0-0", "js-workers-0-0", "js-workers-1-0"]
    await add(cluster, names[0], workloads.jobset_labels("js", "driver", 0, 0))
    await add(cluster, names[1], workloads.jobset_labels("js", "workers", 0, 0))
    assert "WaitingForPods: waiting for pods: 2 of 3 are there" in await why(cluster, "js")
    await add(cluster, names[2], workloads.jobset_labels("js", "workers", 1, 0))
    await until("bound", lambda: is_bound(cluster, "jobset.js", *names))
    assert len(set((await cluster.bound("")).values())) == 3
    assert await owner_of(cluster, "jobset.js") == ("JobSet", uid)


@pytest.mark.usefixtures("kinds")
async def test_an_mpi_job_is_bound_with_its_launcher(cluster: Cluster) -> None:
    await cluster.add_nodes(2)
    cluster.schedule()
    uid = await make(cluster, MPIJOB, "mpi", {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 2}}})
    owners = (workloads.owner(MPIJOB, "mpi", uid),)
    for index in range(2):
        await add(cluster, f"mpi-worker-{index}", workloads.mpi_labels("mpi", "worker", index), owners=owners)
    assert "2 of 3" in await why(cluster, "mpi")
    await add(cluster, "mpi-launcher", workloads.mpi_labels("mpi", "launcher"), gpus=0)
    await until("bound", lambda: is_bound(cluster, "mpijob.mpi", "mpi-launcher", "mpi-worker-0", "mpi-worker-1"))
    assert await owner_of(cluster, "mpijob.mpi") == ("MPIJob", uid)


@pytest.mark.usefixtures("kinds")
async def test_an_autoscaled_ray_cluster_starts_with_its_minimum_and_grows(cluster: Cluster) -> None:
    await cluster.add_nodes(1)
    cluster.schedule()
    groups = [{"groupName": "gpus", "replicas": 2, "minReplicas": 1}]
    uid = await make(cluster, RAYCLUSTER, "ray", {"enableInTreeAutoscaling": True, "workerGroupSpecs": groups})
    owners = (workloads.owner(RAYCLUSTER, "ray", uid),)
    await add(cluster, "ray-head", workloads.ray_labels("ray"), owners=owners, gpus=0)
    for suffix in "xy":
        await add(cluster, f"ray-{suffix}", workloads.ray_labels("ray", "gpus"), owners=owners)
    await until("the minimum is bound", lambda: is_bound(cluster, "raycluster.ray", "ray-head"))
    assert len(await cluster.bound("")) == 2
    await cluster.add_nodes(1)
    await until("the rest has joined", lambda: is_bound(cluster, "raycluster.ray", "ray-x", "ray-y"))
    placement = await cluster.client.get(Placement, "raycluster.ray", cluster.namespace)
    assert placement.spec.size == 3
    assert await owner_of(cluster, "raycluster.ray") == ("RayCluster", uid)


async def test_a_pod_group_is_waited_for_until_its_kind_is_installed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "LOOK_AGAIN_S", 0.5)
    await cluster.add_nodes(3)
    cluster.schedule()
    for number in range(2):
        await add(cluster, f"p{number}", {workloads.POD_GROUP: "pg"})
    await cluster.add_gang("other", 1)
    await cluster.until_bound("other", 1, "a gang that needs no such object is bound")
    said = await why(cluster, "pg")
    assert said.startswith("WaitingForWorkload: ")
    assert f"PodGroup {cluster.namespace}/pg (scheduling.x-k8s.io/v1alpha1)" in said
    try:
        await workloads.install(cluster.client, COSCHEDULING)
        uid = await make(cluster, COSCHEDULING, "pg", {"minMember": 2})
        await until("bound", lambda: is_bound(cluster, "pod-group.pg", "p0", "p1"))
        assert await owner_of(cluster, "pod-group.pg") == ("PodGroup", uid)
    finally:
        await workloads.uninstall(cluster.client, COSCHEDULING)


def template(cluster: Cluster, **spec: Any) -> dict[str, Any]:
    body = cluster.pod("none", 0, 1)["spec"]
    return {"metadata": {"labels": {"app": "test"}}, "spec": {**body, **spec}}


@pytest.fixture
def real(cluster: Cluster, request: pytest.FixtureRequest) -> Cluster:
    if request.node.callspec.params["api_server"] != "real":
        pytest.skip("the embedded API server serves neither Jobs nor StatefulSets")
    return cluster


async def test_an_indexed_job_is_bound_whole_and_its_placement_goes_with_it(real: Cluster) -> None:
    cluster = real
    await cluster.add_nodes(3)
    cluster.schedule()
    job = {"parallelism": 3, "completions": 3, "completionMode": "Indexed"}
    body = {"template": template(cluster, restartPolicy="Never"), **job}
    made = await cluster.client.create(workloads.object_of(Job.RESOURCE, "train", cluster.namespace, body), kind=Job)
    await until("bound", lambda: is_bound(cluster, "job.train"))
    bound = await cluster.bound("")
    placement = await cluster.client.get(Placement, "job.train", cluster.namespace)
    assert {f"train-{slot.slot}": slot.node for slot in placement.spec.slots} == {
        name.rpartition("-")[0]: node for name, node in bound.items()
    }
    assert await owner_of(cluster, "job.train") == ("Job", made.uid)

    async def warned() -> bool:
        return any(
            event.reason == "ReleaseCountsAsFailure" and event.involved_object.uid == made.uid
            for event in await cluster.events()
        )

    await until("the Job is warned", warned)
    await cluster.client.delete(Job, "train", namespace=cluster.namespace, propagation="Background")

    async def gone() -> bool:
        return await cluster.placement("job.train") is None

    await until("its placement is gone", gone)


async def test_recreated_pod_of_a_job_gets_its_slot_back(real: Cluster) -> None:
    cluster = real
    await cluster.add_nodes(2)
    cluster.schedule()
    job = {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}
    body = {"template": template(cluster, restartPolicy="Never"), **job}
    await cluster.client.create(workloads.object_of(Job.RESOURCE, "train", cluster.namespace, body), kind=Job)
    await until("bound", lambda: is_bound(cluster, "job.train"))
    before = {name.rpartition("-")[0]: node for name, node in (await cluster.bound("")).items()}
    victim = next(pod for pod in await cluster.pods() if pod.name.startswith("train-1-"))
    await cluster.client.delete(Pod, victim.name, namespace=cluster.namespace, grace_s=0)

    async def again() -> bool:
        bound = await cluster.bound("")
        return victim.name not in bound and {name.rpartition("-")[0]: node for name, node in bound.items()} == before

    await until("the new pod is where the old one was", again)


async def test_a_stateful_set_is_bound_whole(real: Cluster) -> None:
    cluster = real
    await cluster.add_nodes(2)
    cluster.schedule()
    body = {
        "replicas": 2,
        "serviceName": "none",
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": "test"}},
        "template": template(cluster),
    }
    made = await cluster.client.create(
        workloads.object_of(StatefulSet.RESOURCE, "web", cluster.namespace, body), kind=StatefulSet
    )
    await until("bound", lambda: is_bound(cluster, "statefulset.web", "web-0", "web-1"))
    assert await owner_of(cluster, "statefulset.web") == ("StatefulSet", made.uid)


@pytest.mark.timeout(240)
@pytest.mark.kubernetes_since("1.36")  # scheduling.k8s.io/v1alpha2
async def test_a_native_pod_group_is_bound_whole(start_control_plane: StartControlPlane) -> None:
    plane = start_control_plane(
        feature_gates={"GenericWorkload": True}, runtime_config={"scheduling.k8s.io/v1alpha2": True}
    )
    async with Client(load_config(str(plane.kubeconfig))) as client:
        cluster = Cluster(client, plane.kubeconfig)
        try:
            await cluster.start()
            await cluster.add_nodes(2)
            cluster.schedule()
            uid = await make(cluster, PodGroup.RESOURCE, "pg", {"schedulingPolicy": {"gang": {"minCount": 2}}})
            member = {"schedulingGroup": {"podGroupName": "pg"}}
            await add(cluster, "p0", {}, spec=member)
            assert "1 of 2" in await why(cluster, "pg")
            await add(cluster, "p1", {}, spec=member)
            await until("bound", lambda: is_bound(cluster, "podgroup.pg", "p0", "p1"))
            assert await owner_of(cluster, "podgroup.pg") == ("PodGroup", uid)
        finally:
            await cluster.close()
