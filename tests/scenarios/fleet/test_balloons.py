"""Balloons on a cluster: they fill idle nodes, yield at once to gangs, and no balloon stays without a node."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry

from muster.api.placement import Placement
from muster.fleet.balloons.config import CONFIG_KEY, CONFIG_MAP
from muster.fleet.balloons.controller import BalloonController
from muster.fleet.balloons.deployment import PRIORITY_CLASS, deployment_name
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import AlreadyExists, NotFound
from muster.kube.objects.apps import Deployment
from muster.kube.objects.core import ConfigMap, Event
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.sim.nodes import EmptyRuntime, SimNodes
from tests.scenarios.fleet.deployments import serve_deployments
from tests.scenarios.scheduler.conftest import GPU, POOL, Cluster
from tests.support.apiserver import ApiServer
from tests.support.priorityclasses import make_priority_class
from tests.support.waiting import until
from tests.support.workloads import uninstall

CAPACITY = {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: "8"}
NAME = deployment_name("pool")


@dataclass
class Fleet:
    """Simulated nodes, the scheduler, and the controller of balloons."""

    cluster: Cluster
    sim: SimNodes

    @property
    def client(self) -> Client:
        return self.cluster.client

    async def add_nodes(self, count: int) -> list[str]:
        before = set(self.sim.nodes)
        await self.sim.add(count, capacity=CAPACITY, labels={POOL: self.cluster.namespace})
        fresh = sorted(set(self.sim.nodes) - before)
        self.cluster.nodes += fresh

        async def open_to_pods() -> bool:
            nodes = (await self.client.list(Node, label_selector=f"{POOL}={self.cluster.namespace}")).items
            return {node.name for node in nodes if not node.spec.taints} >= set(fresh)

        await until("pods may run on the nodes", open_to_pods)
        return fresh

    async def configure(self, replicas: int | str) -> None:
        text = f"""\
pools:
- name: pool
  nodeSelector: {{{POOL}: {self.cluster.namespace}}}
  replicas: {replicas}
  resources: {{{GPU}: 8}}
"""
        meta = ObjectMeta(name=CONFIG_MAP, namespace=self.cluster.namespace)
        with contextlib.suppress(AlreadyExists):
            await self.client.create(ConfigMap(metadata=meta))
        await self.client.patch(ConfigMap, CONFIG_MAP, {"data": {CONFIG_KEY: text}}, namespace=meta.namespace)

    async def replicas(self) -> int | None:
        try:
            return (await self.client.get(Deployment, NAME, self.cluster.namespace)).spec.replicas
        except NotFound:
            return None

    async def balloons(self) -> list[Pod]:
        selector = "muster.dev/balloon=true"
        pods = (await self.client.list(Pod, self.cluster.namespace, label_selector=selector)).items
        return [pod for pod in pods if not pod.terminating]

    async def end(self, gang: str) -> None:
        """As when its job is deleted, and with it all that belongs to that."""
        with contextlib.suppress(NotFound):
            await self.client.delete(Placement, gang, namespace=self.cluster.namespace)
        await self.cluster.kill(gang)

    async def until_on(self, nodes: set[str]) -> None:
        """Wait until balloons are on exactly these nodes and every balloon has one."""

        async def there() -> bool:
            on = [pod.spec.node_name for pod in await self.balloons()]
            return set(on) == nodes and len(on) == len(nodes) == await self.replicas()

        await until(f"balloons are on {sorted(nodes)} and none waits", there)


@pytest.fixture
async def fleet(api_server: ApiServer) -> AsyncIterator[Fleet]:
    async with Client(load_config(api_server.kubeconfig)) as client:
        cluster = Cluster(client, api_server.kubeconfig)
        tasks: list[asyncio.Task[None]] = []
        try:
            await cluster.start()
            await make_priority_class(client, PRIORITY_CLASS, -5, preemption_policy="Never")
            if api_server.kind == "embedded":
                tasks.append(asyncio.create_task(serve_deployments(client, cluster.namespace)))
            sim = SimNodes(
                client,
                runtime=EmptyRuntime(),
                now=lambda: datetime.now(UTC),
                start_s=0.01,
                stop_s=0.01,
                prefix=cluster.namespace,
            )
            async with sim:
                cluster.schedule()
                controller = BalloonController(client, cluster.namespace, "none", registry=CollectorRegistry())
                tasks.append(asyncio.create_task(controller.run()))
                yield Fleet(cluster, sim)
                for task in tasks:
                    if task.done():
                        task.result()
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                with contextlib.suppress(NotFound):
                    await client.delete(Deployment, NAME, namespace=cluster.namespace, propagation="Foreground")

                async def gone() -> bool:
                    for pod in await cluster.pods():
                        with contextlib.suppress(NotFound):
                            await client.delete(Pod, pod.name, namespace=pod.namespace, grace_s=0)
                    return not await cluster.pods()

                await until("no pod is left", gone)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await cluster.close()
            if api_server.kind == "embedded":
                await uninstall(client, Deployment.RESOURCE)


async def test_balloons_leave_at_once_for_a_gang_and_do_not_outrun_the_next_one(fleet: Fleet) -> None:
    cluster = fleet.cluster
    nodes = set(await fleet.add_nodes(4))
    await fleet.configure(9)
    await fleet.until_on(nodes)

    await cluster.add_gang("first", 3)
    await cluster.until_bound("first", 3, "the gang is bound whole where balloons were")
    taken = set((await cluster.bound("first")).values())
    await fleet.until_on(nodes - taken)

    await cluster.add_gang("second", 4)
    await fleet.end("first")
    await cluster.until_bound("second", 4, "the second gang is bound whole, refills or not")
    await fleet.until_on(set())

    await fleet.end("second")
    await fleet.until_on(nodes)


async def test_balloons_are_as_few_as_there_are_nodes_for_them(fleet: Fleet) -> None:
    first, second, third = await fleet.add_nodes(3)
    await fleet.configure(3)
    await fleet.until_on({first, second, third})

    await fleet.client.patch(Node, first, {"spec": {"unschedulable": True}})
    await fleet.until_on({second, third})
    taint = {"key": "example.com/quarantined", "effect": "NoSchedule"}
    await fleet.client.patch(Node, second, {"spec": {"taints": [taint]}})
    await fleet.until_on({third})
    await fleet.client.patch(Node, first, {"spec": {"unschedulable": False}})
    await fleet.until_on({first, third})
    await fleet.configure(1)
    await until("one is enough", lambda: _count(fleet, 1))
    await fleet.configure(3)
    await fleet.until_on({first, third})
    await fleet.client.delete(ConfigMap, CONFIG_MAP, namespace=fleet.cluster.namespace)
    await until("without a configuration there is none", lambda: _count(fleet, 0))
    assert await fleet.replicas() is None


async def test_a_configuration_that_is_wrong_is_said_and_changes_nothing(fleet: Fleet) -> None:
    nodes = set(await fleet.add_nodes(2))
    await fleet.configure(2)
    await fleet.until_on(nodes)
    await fleet.configure("many")

    async def said() -> list[str]:
        events = (await fleet.client.list(Event, fleet.cluster.namespace)).items
        return [event.message for event in events if event.reason == "BadConfig"]

    (message,) = await until("operators see the Event", said)
    assert "line 4: pools[0].replicas: Expected `int`, got `str`" in message
    more = await fleet.add_nodes(1)
    await fleet.client.patch(Node, more[0], {"spec": {"unschedulable": True}})
    await fleet.client.patch(Node, min(nodes), {"spec": {"unschedulable": True}})
    await fleet.until_on(nodes - {min(nodes)})


async def _count(fleet: Fleet, count: int) -> bool:
    return len(await fleet.balloons()) == count
