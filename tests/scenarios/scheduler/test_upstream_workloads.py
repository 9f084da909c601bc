"""What users of other gang schedulers ran into with Jobs, JobSets, MPIJobs and RayClusters, by upstream number."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from muster.api.placement import Placement
from muster.kube.objects.batch import Job
from muster.kube.objects.pod import Pod
from muster.kube.objects.workloads import JobSet, RayCluster
from tests.scenarios.scheduler.conftest import Cluster
from tests.scenarios.scheduler.test_adapters import (
    COSCHEDULING,
    JOBSET,
    MPIJOB,
    RAYCLUSTER,
    add,
    is_bound,
    make,
    template,
    why,
)
from tests.support import workloads
from tests.support.waiting import until


@pytest.fixture
async def kinds(cluster: Cluster) -> AsyncIterator[None]:
    """The custom kinds, for one test."""
    await workloads.install(cluster.client, *workloads.CUSTOM)
    yield
    await workloads.uninstall(cluster.client, *workloads.CUSTOM)


@pytest.fixture
async def jobs(cluster: Cluster, request: pytest.FixtureRequest) -> AsyncIterator[bool]:
    """Jobs; whether a user makes their pods. The embedded API server knows them only as a custom kind."""
    real = request.node.callspec.params["api_server"] == "real"
    if not real:
        await workloads.install(cluster.client, Job.RESOURCE)
    yield real
    if not real:
        await workloads.uninstall(cluster.client, Job.RESOURCE)


async def set_phase(cluster: Cluster, pod: str, phase: str) -> None:
    """As its kubelet says it."""
    await cluster.client.patch(
        Pod, pod, {"status": {"phase": phase}}, namespace=cluster.namespace, subresource="status"
    )


async def delete(cluster: Cluster, *pods: str) -> None:
    for pod in pods:
        await cluster.client.delete(Pod, pod, namespace=cluster.namespace, grace_s=0)


@pytest.mark.usefixtures("kinds")
async def test_a_launcher_that_is_made_when_the_workers_run_is_not_waited_for_608(cluster: Cluster) -> None:
    """MPI operator: workers wait for a launcher that waits for them. Ours: they start, and it joins ahead of others."""
    await cluster.add_nodes(2)
    cluster.schedule()
    replicas = {"Launcher": {}, "Worker": {"replicas": 2}}
    spec = {"launcherCreationPolicy": "WaitForWorkersReady", "mpiReplicaSpecs": replicas}
    owners = (workloads.owner(MPIJOB, "mpi", await make(cluster, MPIJOB, "mpi", spec)),)
    workers = [f"mpi-worker-{index}" for index in range(2)]
    await add(cluster, workers[0], workloads.mpi_labels("mpi", "worker", 0), owners=owners)
    assert await cluster.bound("") == {}
    await add(cluster, workers[1], workloads.mpi_labels("mpi", "worker", 1), owners=owners)
    await until("the workers are bound", lambda: has_bound(cluster, *workers))
    for worker in workers:
        await set_phase(cluster, worker, "Running")
    await add(cluster, "mpi-launcher", workloads.mpi_labels("mpi", "launcher"), gpus=0)
    await until("whole", lambda: is_bound(cluster, "mpijob.mpi", "mpi-launcher", *workers))
    placement = await cluster.placement("mpijob.mpi")
    assert placement is not None
    assert placement.spec.size == 3


async def has_bound(cluster: Cluster, *pods: str) -> bool:
    return set(pods) <= (await cluster.bound("")).keys()


@pytest.mark.usefixtures("kinds")
async def test_a_group_of_two_jobs_starts_when_the_second_one_comes_114(cluster: Cluster, jobs: bool) -> None:
    """Coscheduling: refused again and again, both stay Pending with room free. Ours: both start once both are there."""
    await cluster.add_nodes(2)
    cluster.schedule()
    await make(cluster, COSCHEDULING, "pg", {"minMember": 2})
    labels = {workloads.POD_GROUP: "pg"}
    pod = {**template(cluster, restartPolicy="OnFailure"), "metadata": {"labels": labels}}

    async def add_job(name: str) -> None:
        made = await cluster.client.create(
            workloads.object_of(Job.RESOURCE, name, cluster.namespace, {"template": pod}), kind=Job
        )
        if not jobs:
            await add(cluster, f"{name}-x", labels, owners=(workloads.owner(Job.RESOURCE, name, made.uid),))

    async def waits() -> bool:
        return "1 of 2 are there" in await why(cluster, "pg")

    await add_job("first")
    await until("the first one waits, and says for what", waits, ignoring=(AssertionError,))
    assert await cluster.bound("") == {}
    await add_job("second")
    await until("both are bound", lambda: is_bound(cluster, "pod-group.pg"))
    assert {name.split("-")[0] for name in await cluster.bound("")} == {"first", "second"}


@pytest.mark.usefixtures("kinds")
async def test_two_elastic_gangs_that_want_more_never_take_from_each_other_3869(cluster: Cluster) -> None:
    """Volcano: two jobs with pods left over evict each other's without end. Ours: who runs stays, others join room."""
    await cluster.add_nodes(5)
    cluster.schedule()

    async def add_pods(group: str, *names: str) -> None:
        for name in names:
            await add(cluster, name, {workloads.POD_GROUP: group})

    async def running(count: int) -> bool:
        return len(await cluster.bound("")) == count

    async def uids() -> dict[str, str]:
        return {pod.name: pod.uid for pod in await cluster.pods()}

    for group in ("a", "b"):
        await make(cluster, COSCHEDULING, group, {"minMember": 1})
    await add_pods("a", *(f"a{index}" for index in range(5)))
    await until("the first one has every node", lambda: running(5))
    await add_pods("b", *(f"b{index}" for index in range(5)))
    await until("the second one waits, and says why", lambda: said(cluster, "FailedScheduling"))
    made = await uids()
    await delete(cluster, "a4")
    await until("the second one starts on what is left", lambda: is_bound(cluster, "pod-group.b", "b0"))
    await add_pods("a", "a5")
    await cluster.add_nodes(1)
    await until("one more joins", lambda: running(6))
    del made["a4"]
    assert made.items() <= (await uids()).items()


async def test_an_index_that_is_done_is_not_waited_for_142330(cluster: Cluster, jobs: bool) -> None:
    """Native gangs: once an index is done, a recreated pod waits for ever. Ours: it gets its slot, as done counts."""
    await cluster.add_nodes(3)
    cluster.schedule()
    spec = {"parallelism": 3, "completions": 3, "completionMode": "Indexed"}
    body = workloads.object_of(
        Job.RESOURCE, "train", cluster.namespace, {"template": template(cluster, restartPolicy="Never"), **spec}
    )
    made = await cluster.client.create(body, kind=Job)
    owners = (workloads.owner(Job.RESOURCE, "train", made.uid),)

    async def make_pod(index: int, suffix: str) -> None:
        if not jobs:
            await add(cluster, f"train-{index}-{suffix}", {workloads.INDEX: str(index)}, owners=owners)

    for index in range(3):
        await make_pod(index, "a")
    await until("bound", lambda: is_bound(cluster, "job.train"))
    before = {name.split("-")[1]: (name, node) for name, node in (await cluster.bound("")).items()}
    assert len(before) == 3
    done, _ = before["2"]
    lost, node = before["1"]
    await set_phase(cluster, done, "Succeeded")
    await delete(cluster, lost)
    await make_pod(1, "b")

    async def again() -> bool:
        bound = await cluster.bound("")
        return any(name.startswith("train-1-") and name != lost and bound[name] == node for name in bound)

    await until("the new pod is where the old one was", again)


@pytest.mark.usefixtures("kinds")
async def test_a_ray_cluster_that_changes_size_is_waited_for_as_it_now_is_5205(cluster: Cluster) -> None:
    """KubeRay: its PodGroup keeps the first size, so fewer workers never start. Ours: the RayCluster itself is read."""
    await cluster.add_nodes(2)
    cluster.schedule()
    uid = await make(cluster, RAYCLUSTER, "ray", {"workerGroupSpecs": [{"groupName": "gpus", "replicas": 3}]})
    owners = (workloads.owner(RAYCLUSTER, "ray", uid),)
    await add(cluster, "ray-head", workloads.ray_labels("ray"), owners=owners, gpus=0)
    for suffix in "xyz":
        await add(cluster, f"ray-{suffix}", workloads.ray_labels("ray", "gpus"), owners=owners)
    await until("it waits, and says why", lambda: said(cluster, "FailedScheduling"))
    assert await cluster.bound("") == {}
    await resize(cluster, 2)
    await delete(cluster, "ray-z")
    await until("the smaller one is bound", lambda: is_bound(cluster, "raycluster.ray", "ray-head", "ray-x", "ray-y"))
    await resize(cluster, 3)
    await cluster.add_nodes(1)
    await add(cluster, "ray-w", workloads.ray_labels("ray", "gpus"), owners=owners)
    await until("it has grown", lambda: is_bound(cluster, "raycluster.ray", "ray-head", "ray-x", "ray-y", "ray-w"))
    await cluster.client.patch(RayCluster, "ray", {"spec": {"suspend": True}}, namespace=cluster.namespace)
    await delete(cluster, "ray-head", "ray-x", "ray-y", "ray-w")
    await cluster.add_gang("other", 3)
    await cluster.until_bound("other", 3, "suspended, it holds nothing")


async def resize(cluster: Cluster, replicas: int) -> None:
    spec = {"workerGroupSpecs": [{"groupName": "gpus", "replicas": replicas}]}
    await cluster.client.patch(RayCluster, "ray", {"spec": spec}, namespace=cluster.namespace)


async def said(cluster: Cluster, reason: str) -> bool:
    return any(event.reason == reason for event in await cluster.events())


@pytest.mark.usefixtures("kinds")
async def test_a_job_set_stopped_in_the_middle_of_its_recovery_holds_nothing_14811(cluster: Cluster) -> None:
    """Kueue: a job evicted while it recovers keeps its quota for hours, without pods. Ours: its slots go to others."""
    await cluster.add_nodes(2)
    cluster.schedule()
    job = {"template": {"spec": {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}}}
    await make(cluster, JOBSET, "js", {"replicatedJobs": [{"name": "workers", "replicas": 1, **job}]})

    async def add_pods(attempt: int, *indexes: int) -> list[str]:
        names = [f"js-workers-0-{index}-{attempt}" for index in indexes]
        for name, index in zip(names, indexes, strict=True):
            labels = workloads.jobset_labels("js", "workers", 0, index)
            await add(cluster, name, {**labels, f"{workloads.JOBSET}restart-attempt": str(attempt)})
        return names

    first = await add_pods(0, 0, 1)
    await until("bound", lambda: is_bound(cluster, "jobset.js", *first))
    await delete(cluster, *first)
    recovering = await add_pods(1, 0)  # the other one does not come
    await cluster.add_gang("other", 2)
    await until("the other one waits", lambda: said(cluster, "FailedScheduling"))
    await cluster.client.patch(JobSet, "js", {"spec": {"suspend": True}}, namespace=cluster.namespace)
    await delete(cluster, *recovering)
    await cluster.until_bound("other", 2, "the slots are given up")
    assert await cluster.placement("jobset.js") is None
    await cluster.client.patch(JobSet, "js", {"spec": {"suspend": False}}, namespace=cluster.namespace)
    resumed = await add_pods(2, 0, 1)
    await cluster.kill("other")
    await cluster.client.delete(Placement, "other", namespace=cluster.namespace)
    await until("it is placed again", lambda: is_bound(cluster, "jobset.js", *resumed))
