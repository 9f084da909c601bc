"""The node itself: registration, lease, admission, and what a crash of the kubelet leaves (nothing)."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
from pathlib import Path

import pytest

from muster.embedded.kubelet.containers.downward import PodFacts
from muster.embedded.kubelet.containers.volumes import PodVolumes
from muster.embedded.kubelet.pods.objects import ObjectSource, TokenSource
from muster.kube.client import Client
from muster.kube.errors import NotFound
from muster.kube.objects.coordination import Lease
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from tests.scenarios.kubelet.conftest import NAMESPACE, NodeUnderTest, StartNode, processes
from tests.support.anyserver import BY_KUBELET
from tests.support.apiserver import ApiServer
from tests.support.waiting import TIMEOUT_S, until


async def lease_of(node: NodeUnderTest) -> Lease:
    """The node's Lease, which the kubelet may create after it is ready."""

    async def made() -> Lease:
        return await node.client.get(Lease, node.name, "kube-node-lease")

    lease: Lease = await until("the node has a lease", made, ignoring=(NotFound,))
    return lease


async def test_registration(start_node: StartNode) -> None:
    node = await start_node(
        "--gpus=8", "--cpus=64", "--memory=512Gi", "--labels=a=b,c=d", "--taints=dedicated=ml:NoSchedule"
    )
    found = await node.client.get(Node, node.name)
    status = found.status
    for resources in (status.capacity, status.allocatable):
        assert resources == {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8", "pods": "110"}
    assert found.ready
    assert {"a": "b", "c": "d", "kubernetes.io/hostname": node.name}.items() <= found.metadata.labels.items()
    assert "dedicated" in [taint.key for taint in found.spec.taints]
    assert await node.serving_port() > 0
    assert [address.type for address in status.addresses] == ["InternalIP", "Hostname"]
    lease = await lease_of(node)
    assert lease.spec.holder_identity == node.name
    assert [owner.uid for owner in lease.metadata.owner_references] == [found.uid]


async def test_lease_is_renewed_and_the_node_otherwise_left_alone(start_node: StartNode) -> None:
    node = await start_node("--lease-period-s=0.2")
    version = (await node.client.get(Node, node.name)).metadata.resource_version
    first = await lease_of(node)

    async def renewed() -> bool:
        now = await node.client.get(Lease, node.name, "kube-node-lease")
        assert now.spec.renew_time is not None
        assert first.spec.renew_time is not None
        return (now.spec.renew_time - first.spec.renew_time).total_seconds() > 0.5

    await until("the lease is renewed several times", renewed)
    if node.server.kind == "embedded":  # on the real one kube-controller-manager writes to nodes as well
        assert (await node.client.get(Node, node.name)).metadata.resource_version == version


async def test_boot_id_outlives_the_kubelet_and_not_the_machine(start_node: StartNode) -> None:
    node = await start_node()

    async def boot_id() -> str:
        info = (await node.client.get(Node, node.name)).status.node_info
        assert info is not None
        return info.boot_id

    first = await boot_id()
    node.kill()
    await node.start()
    assert await boot_id() == first
    node.kill()
    await node.start("--new-boot")
    assert await boot_id() != first


@pytest.mark.parametrize(
    ("resource", "amount", "reason"),
    [("cpu", "9", "OutOfcpu"), ("memory", "17Gi", "OutOfmemory"), ("nvidia.com/gpu", "5", "OutOfnvidia.com/gpu")],
)
@BY_KUBELET
async def test_more_than_the_node_has_is_rejected(node: NodeUnderTest, resource: str, amount: str, reason: str) -> None:
    limits = {"resources": {"limits": {resource: amount}}}
    pod = await node.finished(await node.run("true", container=limits, wait=False))
    assert (pod.status.phase, pod.status.reason) == ("Failed", reason)
    assert pod.status.message.startswith(f"Pod was rejected: Node didn't have enough resource: {resource}, requested:")
    assert pod.status.container_statuses == ()


@BY_KUBELET
async def test_finished_pods_hold_nothing(node: NodeUnderTest) -> None:
    whole = {"resources": {"limits": {"nvidia.com/gpu": "4"}}}
    for _ in range(2):
        assert (await node.finished(await node.run("true", container=whole))).status.phase == "Succeeded"


async def test_required_node_affinity_that_does_not_hold_is_rejected(node: NodeUnderTest) -> None:
    term = {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [node.name]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    pod = await node.finished(await node.run("true", affinity={"nodeAffinity": required}, wait=False))
    assert (pod.status.phase, pod.status.reason) == ("Failed", "NodeAffinity")


async def test_killed_kubelet_leaves_no_process_and_reports_the_pods_when_it_is_back(node: NodeUnderTest) -> None:
    never = await node.running(await node.run("sh", "-c", "setsid sleep 1000 & sleep 1000"))
    again = await node.running(await node.run("sh", "-c", "echo started; sleep 1000", restartPolicy="Always"))
    assert processes(f"MUSTER_CLUSTER_ID={node.cluster_id}")
    node.kill()

    async def nothing() -> bool:
        return not processes(f"MUSTER_CLUSTER_ID={node.cluster_id}")

    await until("no process of the cluster is left", nothing)
    assert (
        await node.client.get(Pod, again.name, NAMESPACE)
    ).status.phase == "Running"  # the change was not observable
    await node.start()
    never = await node.finished(never)
    state = never.status.container_statuses[0].state
    assert state is not None
    assert state.terminated is not None
    assert (never.status.phase, state.terminated.exit_code, state.terminated.reason) == ("Failed", 255, "Unknown")
    again = await node.until(again, lambda pod: pod.ready and pod.status.container_statuses[0].restart_count == 1)
    assert again.status.phase == "Running"


async def test_deletion_asked_for_while_the_kubelet_was_away(node: NodeUnderTest) -> None:
    pod = await node.running(await node.run("sleep", "1000"))
    node.kill()
    await node.client.delete(Pod, pod.name, namespace=NAMESPACE)
    await node.start()
    await node.gone(pod)


@BY_KUBELET
async def test_end_of_the_kubelet_is_the_end_of_its_pods(node: NodeUnderTest) -> None:
    await node.running(await node.run("sh", "-c", "trap '' TERM; sleep 1000", terminationGracePeriodSeconds=600))
    await node.terminate()
    assert not processes(f"MUSTER_CLUSTER_ID={node.cluster_id}")
    await node.start()


async def test_one_transition_is_one_write(node: NodeUnderTest) -> None:
    """The first report of a pod of three containers that are up says so of all of them, and is the last."""
    containers = [{"name": name, "image": "none", "command": ["sleep", "1000"]} for name in ("a", "b", "c")]
    created = await node.create({"containers": containers}, wait=False)
    reports: list[Pod] = []

    async def watch(pod: Pod, until: str) -> None:
        selector = f"metadata.name={pod.name}"
        version = pod.metadata.resource_version
        async for event in node.client.watch(Pod, NAMESPACE, field_selector=selector, resource_version=version):
            if event.type == "MODIFIED":
                reports.append(event.object)
            if event.object.status.phase == until or event.type == "DELETED":
                return

    await asyncio.wait_for(watch(created, "Running"), TIMEOUT_S)
    # A start that is slow is reported before, and again if it stays so.
    assert [pod.status.phase for pod in reports] == [*["Pending"] * (len(reports) - 1), "Running"]
    states = [pod.status.container_statuses for pod in reports]
    assert all(before != after for before, after in itertools.pairwise(states))
    assert not [status for each in states[:-1] for status in each if status.state and status.state.running]
    assert reports[-1].ready
    assert all(status.ready and status.started for status in reports[-1].status.container_statuses)
    running = reports.pop()
    reports.clear()
    await node.client.delete(Pod, created.name, namespace=NAMESPACE)
    await asyncio.wait_for(watch(running, ""), TIMEOUT_S)
    ended = [pod for pod in reports if pod.status.phase == "Failed"]
    assert [pod.metadata.deletion_timestamp is None for pod in reports if pod not in ended] == [False]
    assert all(
        status.state and status.state.terminated for pod in ended[-1:] for status in pod.status.container_statuses
    )


async def test_projected_token_is_replaced_before_it_expires(
    api_server_for_kubelets: ApiServer, client: Client, tmp_path: Path
) -> None:
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}
    pod = await client.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"generateName": "token-", "namespace": NAMESPACE},
            "spec": {
                "nodeName": "missing",
                "automountServiceAccountToken": False,
                "containers": [{"name": "main", "image": "none"}],
                "volumes": [{"name": "token", "projected": {"sources": [token]}}],
            },
        },
        kind=Pod,
    )
    try:
        now = 1000.0
        tokens = TokenSource(client, lambda: now)
        volumes = PodVolumes(tmp_path, PodFacts(pod, "", "", {}), ObjectSource(client), tokens)
        await volumes.set_up()
        first = (tmp_path / "token" / "token").read_text()
        assert volumes.refresh_in_s(10_000) == 480
        now += 479
        await volumes.set_up()
        assert (tmp_path / "token" / "token").read_text() == first
        now += 1
        await asyncio.sleep(1.1)  # a token of the same second may be the same
        await volumes.set_up()
        second = (tmp_path / "token" / "token").read_text()
        assert second != first
        payload = second.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        assert claims["kubernetes.io"]["pod"]["uid"] == pod.uid
    finally:
        await client.delete(Pod, pod.name, namespace=NAMESPACE, grace_s=0)
