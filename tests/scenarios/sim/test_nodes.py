"""Simulated nodes do to pods what kubelets do."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.errors import Forbidden, NotFound
from muster.kube.objects.coordination import Lease
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.sim.nodeobjects import LEASE_NAMESPACE
from muster.sim.nodes import EmptyRuntime, SimNodes
from tests.support.waiting import until

CAPACITY = {"cpu": "8", "memory": "64Gi", "pods": "110"}


@pytest.fixture
async def client(cluster_config: ClusterConfig) -> AsyncIterator[Client]:
    async with Client(cluster_config) as client:
        yield client


@pytest.fixture
async def nodes(client: Client) -> AsyncIterator[SimNodes]:
    prefix = f"n{uuid.uuid4().hex[:6]}"
    now: Callable[[], datetime] = lambda: datetime.now(UTC)  # noqa: E731
    async with SimNodes(client, runtime=EmptyRuntime(), now=now, start_s=0.01, stop_s=0.01, prefix=prefix) as nodes:
        await nodes.add(2, capacity=CAPACITY)
        yield nodes
    for name in nodes.nodes:
        await client.delete(Node, name)
        await client.delete(Lease, name, namespace=LEASE_NAMESPACE)


async def bound(client: Client, node: str) -> Pod:
    """A pod that a user bound to the node."""
    spec = {
        "nodeName": node,
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "worker", "image": "train"}],
    }
    name = f"p-{uuid.uuid4().hex[:6]}"
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}

    async def made() -> Pod | None:
        try:
            return await client.create(pod, kind=Pod)
        except Forbidden:  # until the control plane has made the default service account
            return None

    created: Pod = await until("the pod is made", made)
    return created


async def running(client: Client, pod: Pod) -> Pod:
    async def look() -> Pod | None:
        now = await client.get(Pod, pod.name, pod.namespace)
        return now if now.status.phase == "Running" and now.ready else None

    found: Pod = await until(f"{pod.name} runs", look)
    return found


async def gone(client: Client, pod: Pod) -> bool:
    try:
        return (await client.get(Pod, pod.name, pod.namespace)).uid != pod.uid
    except NotFound:
        return True


async def forgotten(nodes: SimNodes, pod: Pod) -> bool:
    return pod.uid not in nodes.pods


async def test_bound_pods_run_and_deleted_ones_end(client: Client, nodes: SimNodes) -> None:
    name = next(iter(nodes.nodes))
    pod = await running(client, await bound(client, name))
    assert pod.status.pod_ip
    assert pod.status.host_ip == nodes.nodes[name].host
    await client.delete(Pod, pod.name, namespace=pod.namespace)
    await until("it is gone", lambda: gone(client, pod))
    await until("its node has heard so", lambda: forgotten(nodes, pod))


async def test_containers_that_end_fail_their_pod(client: Client, nodes: SimNodes) -> None:
    pod = await running(client, await bound(client, next(iter(nodes.nodes))))
    await nodes.end(pod.uid, 137)
    now = await client.get(Pod, pod.name, pod.namespace)
    assert now.status.phase == "Failed"
    state = now.status.container_statuses[0].state
    assert state is not None
    assert state.terminated is not None
    assert state.terminated.exit_code == 137
    await client.delete(Pod, pod.name, namespace=pod.namespace, grace_s=0)


async def test_lost_node_confirms_nothing_until_it_boots_again(client: Client, nodes: SimNodes) -> None:
    name, other = nodes.nodes
    stuck = await running(client, await bound(client, name))
    boot = (await client.get(Node, name)).status.node_info.boot_id
    nodes.lose(name)
    await client.delete(Pod, stuck.name, namespace=stuck.namespace)
    witness = await running(client, await bound(client, other))  # the other kubelet has seen later events by then
    assert not await gone(client, stuck)
    await nodes.recover(name)
    await until("it is gone", lambda: gone(client, stuck))
    assert (await client.get(Node, name)).status.node_info.boot_id != boot
    await client.delete(Pod, witness.name, namespace=witness.namespace, grace_s=0)


async def test_a_pod_that_is_bound_while_other_nodes_still_register_runs(
    client: Client, nodes: SimNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = min(nodes.nodes)[:-5]
    early, late, may_register = f"{prefix}00002", f"{prefix}00003", asyncio.Event()
    create = client.create

    async def create_late(made: Any, **options: Any) -> Any:
        if isinstance(made, dict) and made["kind"] == "Node" and made["metadata"]["name"] == late:
            await may_register.wait()
        return await create(made, **options)

    async def there() -> bool:
        return early in {node.name for node in (await client.list(Node)).items}

    monkeypatch.setattr(client, "create", create_late)
    adding = asyncio.create_task(nodes.add(2, capacity=CAPACITY))
    await until("the first of them is there", there)
    pod = await bound(client, early)
    await running(client, pod)
    assert not adding.done()
    may_register.set()
    await adding
    await client.delete(Pod, pod.name, namespace=pod.namespace)
