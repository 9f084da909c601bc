"""A bind that fails half-way, or a scheduler that dies between two binds: whole on good nodes, or released."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import Conflict, ServerTimeout, TooManyRequests, Unavailable
from muster.kube.objects.pod import Pod
from tests.scenarios.scheduler.conftest import Cluster
from tests.support.anyserver import BY_BINDS, BY_SCHEDULER
from tests.support.waiting import until


class FaultyClient(Client):
    """Binds through to the API server until asked to fail: after `after` binds, `fault` is awaited instead."""

    def __init__(self, *arguments: Any, after: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.after = after
        self.begun = 0
        self.done = 0
        self.reached = asyncio.Event()

    async def fault(self, pod_name: str, node: str, namespace: str, uid: str) -> None:
        await asyncio.Event().wait()

    async def bind(
        self, pod_name: str, node: str, *, namespace: str, uid: str, annotations: Mapping[str, str] | None = None
    ) -> None:
        if self.begun >= self.after:
            if self.done >= self.after:
                self.reached.set()
            await self.fault(pod_name, node, namespace, uid)
            return
        self.begun += 1
        await super().bind(pod_name, node, namespace=namespace, uid=uid, annotations=annotations)
        self.done += 1
        if self.done >= self.after:
            self.reached.set()


@pytest.mark.parametrize("after", [*(pytest.param(after, marks=BY_BINDS) for after in (0, 1, 3)), 2])
async def test_a_scheduler_killed_between_binds_is_finished_by_the_next(cluster: Cluster, after: int) -> None:
    await cluster.add_nodes(5)
    async with FaultyClient(load_config(str(cluster.kubeconfig)), after=after) as client:
        _, first = cluster.schedule(client)
        await cluster.add_gang("train", 4)
        await until("binds have begun", client.reached.is_set)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    placement = await cluster.placement("train")
    assert placement is not None
    assert placement.status.phase == "Open"
    assert len(await cluster.bound("train")) == after
    cluster.schedule()
    await cluster.until_bound("train", 4, "bound whole")
    planned = {f"train-{slot.slot}-0": slot.node for slot in placement.spec.slots}
    assert await cluster.bound("train") == planned


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(TooManyRequests(429, "TooManyRequests", "slow down"), marks=BY_BINDS),
        pytest.param(ServerTimeout(504, "Timeout", "too late"), marks=BY_BINDS),
        pytest.param(Unavailable(0, "Unavailable", "connection lost"), marks=BY_BINDS),
        Conflict(409, "Conflict", "the object has been modified"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_binds_that_fail_for_a_while_are_tried_again(cluster: Cluster, error: Exception) -> None:
    await cluster.add_nodes(4)

    class Failing(FaultyClient):
        failures = 3

        async def fault(self, pod_name: str, node: str, namespace: str, uid: str) -> None:
            if self.failures:
                self.failures -= 1
                raise error
            await Client.bind(self, pod_name, node, namespace=namespace, uid=uid)

    async with Failing(load_config(str(cluster.kubeconfig)), after=1) as client:
        _, task = cluster.schedule(client)
        await cluster.add_gang("train", 3)
        await cluster.until_bound("train", 3, "bound whole")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_lost_answer_after_a_bind_is_not_a_failure(cluster: Cluster) -> None:
    await cluster.add_nodes(3)

    class Lossy(FaultyClient):
        async def fault(self, pod_name: str, node: str, namespace: str, uid: str) -> None:
            await Client.bind(self, pod_name, node, namespace=namespace, uid=uid)
            raise Unavailable(0, "Unavailable", "connection lost")

    async with Lossy(load_config(str(cluster.kubeconfig)), after=1) as client:
        _, task = cluster.schedule(client)
        await cluster.add_gang("train", 3)
        await cluster.until_bound("train", 3, "bound whole")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@BY_BINDS
async def test_a_gang_is_said_to_be_bound_though_the_binds_of_another_hang(cluster: Cluster) -> None:
    await cluster.add_nodes(4)

    class Hanging(FaultyClient):
        async def fault(self, pod_name: str, node: str, namespace: str, uid: str) -> None:
            if pod_name.startswith("stuck"):
                await asyncio.Event().wait()
            await Client.bind(self, pod_name, node, namespace=namespace, uid=uid)

    async with Hanging(load_config(str(cluster.kubeconfig)), after=0) as client:
        _, task = cluster.schedule(client, request_timeout_s=600.0)
        await cluster.add_gang("stuck", 2)
        await until("binds have begun", client.reached.is_set)
        await cluster.add_gang("train", 2)
        await cluster.until_bound("train", 2, "bound whole, and said to be")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_pod_recreated_during_binding_ends_fully_bound(cluster: Cluster) -> None:
    await cluster.add_nodes(3)

    class Remaking(FaultyClient):
        async def fault(self, pod_name: str, node: str, namespace: str, uid: str) -> None:
            if pod_name.endswith("-0"):  # attempt 0: a user deletes it just before it is bound
                slot = int(pod_name.split("-")[1])
                await cluster.client.delete(Pod, pod_name, namespace=namespace, grace_s=0)
                await cluster.client.create(cluster.pod("train", slot, 3, attempt=1))
            await Client.bind(self, pod_name, node, namespace=namespace, uid=uid)

    async with Remaking(load_config(str(cluster.kubeconfig)), after=2) as client:
        _, task = cluster.schedule(client)
        await cluster.add_gang("train", 3)
        await cluster.until_bound("train", 3, "bound whole")
        assert any(name.endswith("-1") for name in await cluster.bound("train"))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@BY_SCHEDULER
async def test_a_node_lost_while_binding_is_replaced(cluster: Cluster) -> None:
    await cluster.add_nodes(5)

    class Losing(FaultyClient):
        lost = ""

        async def fault(self, pod_name: str, node: str, namespace: str, uid: str) -> None:
            if not self.lost:
                self.lost = node
                await cluster.remove_node(node)
                raise ServerTimeout(504, "Timeout", "too late")
            await Client.bind(self, pod_name, node, namespace=namespace, uid=uid)

    async with Losing(load_config(str(cluster.kubeconfig)), after=2) as client:
        _, task = cluster.schedule(client)
        await cluster.add_gang("train", 4)
        await cluster.until_bound("train", 4, "bound whole")
        assert client.lost not in (await cluster.bound("train")).values()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_gang_that_cannot_be_bound_in_time_is_released_whole(cluster: Cluster) -> None:
    await cluster.add_nodes(4)

    class Refusing(FaultyClient):
        async def fault(self, pod_name: str, node: str, namespace: str, uid: str) -> None:
            raise Unavailable(0, "Unavailable", "connection lost")

    async with Refusing(load_config(str(cluster.kubeconfig)), after=2) as client:
        _, task = cluster.schedule(client, bind_deadline_s=3.0)
        await cluster.add_gang("train", 4, spec={"terminationGracePeriodSeconds": 30})
        await until("half bound", lambda: _count_bound(cluster, 2))

        async def released() -> bool:
            return not [pod for pod in await cluster.pods("train") if pod.spec.node_name and not pod.terminating]

        await until("no bound member is left", released)
        marked = [
            condition
            for pod in await cluster.pods("train")
            for condition in pod.status.conditions
            if condition.type == "DisruptionTarget"
        ]
        assert [(condition.status, condition.reason) for condition in marked] == [("True", "GangNotBound")] * 2
        client.after = 1_000_000
        for pod in await cluster.pods("train"):
            if pod.spec.node_name:
                await cluster.client.delete(type(pod), pod.name, namespace=cluster.namespace, grace_s=0)
        left = {pod.name for pod in await cluster.pods("train")}
        for slot in range(4):
            if f"train-{slot}-0" not in left:
                await cluster.client.create(cluster.pod("train", slot, 4, attempt=1))
        await cluster.until_bound("train", 4, "placed again")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _count_bound(cluster: Cluster, count: int) -> bool:
    return len(await cluster.bound("train")) == count
