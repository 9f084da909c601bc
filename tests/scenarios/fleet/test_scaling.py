"""Scaling on API servers: a simulated cloud whose instances join as nodes, the scheduler, and gangs."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from muster.api.placement import Placement
from muster.fleet.providers.base import ProviderError
from muster.fleet.providers.simulated import SimulatedCloud, SimulatedGroup
from muster.fleet.scaling import classify, pool_memory, scale_down
from muster.fleet.scaling.controller import ScalingController
from muster.fleet.scaling.demands import Demands
from muster.fleet.scaling.executor import Carrier
from muster.fleet.scaling.node_views import ANNOTATION_RECORD
from muster.fleet.scaling.plan import Cordon, Delete, SetSize, Uncordon
from muster.fleet.scaling.snapshot import Fault, PoolSpec, Template
from muster.fleet.scaling.status import STATUS_KEY, STATUS_MAP, ScalingStatus
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import NotFound
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.manager.lacks import listener
from muster.scheduler.plan import Settings
from tests.scenarios.scheduler.conftest import GPU, POOL, Cluster
from tests.support.anyserver import BY_SCALING
from tests.support.apiserver import ApiServer
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

APPROVED = {"muster.dev/scale-up": "approved"}


class Cloud:
    """A simulated cloud: its instances report as nodes of the cluster, and those that are off fall silent."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.simulated = SimulatedCloud(time.monotonic)
        self.registry = CollectorRegistry()
        self._tasks: list[asyncio.Task[Any]] = []

    def group(self, name: str, **facts: Any) -> SimulatedGroup:
        options = {"boot_s": 0.2, "stop_s": 0.2, **facts}
        group = self.simulated.groups[f"{self.cluster.namespace}-{name}"] = SimulatedGroup(**options)
        return group

    def pool(self, name: str, **facts: Any) -> dict[str, Any]:
        return {
            "name": name,
            "provider": "simulated",
            "group": f"{self.cluster.namespace}-{name}",
            "max": 4,
            "idleSeconds": 3,
            "coolDownSeconds": 1,
            "joinTimeoutSeconds": 60,
            "pollSeconds": 1,
            "template": {"labels": {POOL: self.cluster.namespace}, "capacity": {"cpu": 96, "memory": "1Ti", GPU: 8}},
            **facts,
        }

    async def configure(self, *pools: dict[str, Any]) -> None:
        data = {"scaling.yaml": msgspec.json.encode({"pools": pools}).decode()}
        await self.write(data)

    async def write(self, data: dict[str, str]) -> None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "muster-scaling"}, "data": data}
        namespace = self.cluster.namespace
        try:
            await self.cluster.client.patch(ConfigMap, "muster-scaling", {"data": data}, namespace=namespace)
        except NotFound:
            await self.cluster.client.create(body, kind=ConfigMap, namespace=namespace)

    def start(self, **settings: Any) -> None:
        """The scheduler, scaling, and machines that boot."""
        demands = Demands()
        self.cluster.schedule(lacks=listener(demands), settings=Settings(**settings))
        scaling = ScalingController(
            self.cluster.client,
            self.cluster.namespace,
            "test",
            demands,
            providers={"simulated": self.simulated},
            registry=self.registry,
        )
        self._tasks += [asyncio.create_task(scaling.run()), asyncio.create_task(self._boot())]

    async def _boot(self) -> None:
        known: set[str] = set()
        while True:
            self.simulated.advance()
            reporting = {each.id for each in self.simulated.reporting()}
            for name in sorted(reporting - known):
                labels = {POOL: self.cluster.namespace}
                node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
                await self.cluster.client.create(node)
                self.cluster.nodes.append(name)
                await self.cluster.set_ready(name, True)
            for name in sorted(known - reporting):
                with contextlib.suppress(NotFound):
                    await self.cluster.set_ready(name, False)
            known = reporting
            await asyncio.sleep(0.1)

    async def nodes(self) -> list[Node]:
        return (await self.cluster.client.list(Node, label_selector=f"{POOL}={self.cluster.namespace}")).items

    async def status(self) -> ScalingStatus:
        found = await self.cluster.client.get(ConfigMap, STATUS_MAP, self.cluster.namespace)
        return msgspec.json.decode(found.data[STATUS_KEY], type=ScalingStatus)

    async def states(self, pool: str) -> dict[str, int]:
        with contextlib.suppress(NotFound):
            return next((each.states for each in (await self.status()).pools if each.name == pool), {})
        return {}

    async def reaches(self, pool: str, **states: int) -> None:
        async def check() -> bool:
            return await self.states(pool) == states

        await until(f"pool {pool} is {states}", check)

    async def until_said(self, *wanted: tuple[str, str]) -> None:
        """Wait for Events with these reasons about objects of these kinds: they are written in the background."""

        async def said() -> bool:
            found = {(event.reason, event.involved_object.kind) for event in await self.cluster.events()}
            return set(wanted) <= found

        await until(f"Events say {wanted}", said)

    async def at_rest(self) -> None:
        """Nothing is written while nothing changes, for several plans and looks at the provider."""

        async def versions() -> list[str]:
            status = await self.cluster.client.get(ConfigMap, STATUS_MAP, self.cluster.namespace)
            events = [event for event in await self.cluster.events() if event.source is not None]
            own = [event for event in events if event.source and event.source.component == "muster-scaling"]
            return [status.metadata.resource_version, *sorted(event.metadata.resource_version for event in own)]

        def planned() -> float:
            return self.registry.get_sample_value("muster_scaling_last_plan_timestamp_seconds") or 0.0

        for _ in range(2):  # what was being written when it came to rest may be on its way
            before, since = await versions(), planned()
            await until("several more plans were made", lambda since=since: planned() > since + 4.0)  # type: ignore[misc]
        assert await versions() == before

    async def gang(self, name: str, size: int, *, approved: bool = True) -> None:
        for slot in range(size):
            pod = self.cluster.pod(name, slot, size)
            pod["metadata"]["annotations"] |= APPROVED if approved else {}
            await self.cluster.client.create(pod)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        results = await asyncio.gather(*self._tasks, return_exceptions=True)
        for node in await self.nodes():
            if node.name not in self.cluster.nodes:
                self.cluster.nodes.append(node.name)
        present = {node.name for node in await self.nodes()}
        self.cluster.nodes = [name for name in self.cluster.nodes if name in present]
        for result in results:
            if isinstance(result, Exception):
                raise result


@pytest.fixture
async def cloud(api_server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cloud]:
    monkeypatch.setattr(classify, "SETTLE_S", 2.0)
    monkeypatch.setattr(scale_down, "CORDON_SETTLES_S", 3.0)
    async with Client(load_config(api_server.kubeconfig)) as client:
        cluster = Cluster(client, api_server.kubeconfig)
        made = Cloud(cluster)
        try:
            await cluster.start()
            yield made
        finally:
            await made.close()
            await cluster.close()


async def test_gang_gets_its_nodes_and_unneeded_nodes_are_removed(cloud: Cloud) -> None:
    group = cloud.group("a", size=1)
    await cloud.configure(cloud.pool("a", min=1))
    cloud.start(hold_s=1.0)
    await cloud.reaches("a", Idle=1)
    await cloud.gang("train", 3)
    await cloud.cluster.until_bound("train", 3)
    assert cloud.simulated.sizes == [(f"{cloud.cluster.namespace}-a", 3)], "all that was lacking, at once"
    await cloud.reaches("a", InUse=3)
    assert not any(ANNOTATION_RECORD in node.metadata.annotations for node in await cloud.nodes())

    await cloud.cluster.kill("train")
    await cloud.reaches("a", Idle=1)
    assert group.size == 1

    async def forgotten() -> bool:
        return len(await cloud.nodes()) == 1

    await until("Node objects of instances that are gone are gone", forgotten)
    assert len(cloud.simulated.deleted) == 2
    await cloud.until_said(("ScaleUp", "Pod"), ("PoolGrows", "ConfigMap"))


@BY_SCALING
async def test_nodes_of_a_gang_that_keeps_its_slots_stay(cloud: Cloud) -> None:
    cloud.group("a", size=2)
    await cloud.configure(cloud.pool("a"))
    await cloud.gang("train", 1)
    cloud.start()
    await cloud.cluster.until_bound("train", 1)
    await cloud.cluster.kill("train")
    assert await cloud.cluster.placement("train") is not None
    await cloud.reaches("a", InUse=1)
    assert len(cloud.simulated.deleted) == 1, "the other one was idle for as long"

    async def only_node() -> str:
        found = [node.name for node in await cloud.nodes()]
        return found[0] if len(found) == 1 else ""

    kept = await until("the Node object of the other one is gone", only_node)
    placement = await cloud.cluster.placement("train")
    assert placement is not None
    assert [slot.node for slot in placement.spec.slots] == [kept]
    await cloud.at_rest()


@BY_SCALING
async def test_an_instance_that_never_joins_is_replaced(cloud: Cloud) -> None:
    cloud.group("a", never_join=1)
    await cloud.configure(cloud.pool("a", joinTimeoutSeconds=8))
    cloud.start()
    await cloud.gang("train", 2)
    await cloud.cluster.until_bound("train", 2)
    name = f"{cloud.cluster.namespace}-a"
    assert cloud.simulated.deleted == [(name, f"{name}-1")]
    assert {node.name for node in await cloud.nodes()} == {f"{name}-2", f"{name}-3"}


@BY_SCALING
async def test_where_the_cheap_pool_has_no_capacity_the_next_one_serves(cloud: Cloud) -> None:
    cheap = cloud.group("spot", available=1)
    cloud.group("ondemand")
    await cloud.configure(cloud.pool("ondemand", price=3.0), cloud.pool("spot", price=1.0))
    cloud.start()
    await cloud.gang("train", 3)
    await cloud.cluster.until_bound("train", 3)
    await until("the cheap pool asks for one node", lambda: cheap.size == 1)
    await cloud.reaches("ondemand", InUse=2)
    spot = next(each for each in (await cloud.status()).pools if each.name == "spot")
    condition = spot.conditions[0]
    assert (condition.type, condition.status, condition.reason) == ("Available", "False", "NoCapacity")


@BY_SCALING
async def test_a_cloud_whose_answers_get_lost_or_that_throttles_gets_no_second_order(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_memory, "BACKOFF_S", 1.0)
    group = cloud.group("a")
    await cloud.configure(cloud.pool("a"))
    order, orders = cloud.simulated.set_size, []

    async def lost(pool: PoolSpec, size: int) -> None:
        orders.append(size)
        await order(pool, size)
        if len(orders) == 1:
            group.trouble.append((ProviderError(Fault.THROTTLED, "rate exceeded", 0.0), False))
            raise ProviderError(Fault.TIMED_OUT, "no answer in 10 s", 0.0)

    monkeypatch.setattr(cloud.simulated, "set_size", lost)
    cloud.start()
    await cloud.gang("train", 2)

    await cloud.cluster.until_bound("train", 2)

    def errors() -> list[float | None]:
        labels = [{"pool": "a", "fault": fault} for fault in ("TimedOut", "Throttled")]
        return [cloud.registry.get_sample_value("muster_scaling_provider_errors_total", each) for each in labels]

    await until("both faults are counted", lambda: all(errors()))  # instances join whatever the controller hears
    assert errors() == [1.0, 1.0]
    assert set(orders) == {2}, "whatever was answered: what was ordered is seen"
    assert len(group.instances) == 2


@BY_SCALING
async def test_a_cloud_that_says_yes_and_does_nothing_is_found_out_and_the_next_pool_serves(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool_memory, "SIZE_SETTLES_S", 1.0)
    cloud.group("liar", deaf=True)
    cloud.group("honest")
    await cloud.configure(cloud.pool("honest", price=3.0), cloud.pool("liar", price=1.0))
    cloud.start()
    await cloud.gang("train", 2)
    await cloud.cluster.until_bound("train", 2)
    await cloud.reaches("honest", InUse=2)
    liar = next(each for each in (await cloud.status()).pools if each.name == "liar")
    assert (liar.conditions[0].status, liar.conditions[0].reason) == ("False", "FewerThanAsked")


@BY_SCALING
async def test_unapproved_gang_gets_no_nodes(cloud: Cloud) -> None:
    cloud.group("a", size=1)
    await cloud.configure(cloud.pool("a", min=1))
    cloud.start()
    await cloud.reaches("a", Idle=1)
    await cloud.gang("free", 2, approved=False)

    async def said() -> bool:
        return any(answer.outcome == "ScaleUpNotApproved" for answer in (await cloud.status()).gangs.values())

    await until("its status says why", said)
    assert cloud.simulated.sizes == []
    for slot in range(2):
        patch = {"metadata": {"annotations": APPROVED}}
        await cloud.cluster.client.patch(Pod, f"free-{slot}-0", patch, namespace=cloud.cluster.namespace)
    await cloud.cluster.until_bound("free", 2)


@BY_SCALING
async def test_a_configuration_that_cannot_be_used_changes_nothing_and_is_reported(cloud: Cloud) -> None:
    group = cloud.group("a", size=0)
    await cloud.configure(cloud.pool("a", min=1))
    cloud.start()
    await cloud.reaches("a", Idle=1)
    for text, line in (("pools: 2026-99-99", "line 1"), ("pools:\n- name: a\n  max: -1\n", "line 2")):
        await cloud.write({"scaling.yaml": text})

        async def reported(line: str = line) -> bool:
            return line in (await cloud.status()).config_error

        await until("the status names the line", reported)
    assert cloud.registry.get_sample_value("muster_scaling_config_valid") == 0.0
    await cloud.gang("train", 2)
    await cloud.cluster.until_bound("train", 2)
    assert group.size == 2, "the pools it had are scaled on"
    await cloud.until_said(("ScalingConfigInvalid", "ConfigMap"))


async def test_the_last_look_before_a_deletion_is_at_the_api_server(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a plan says: no node goes that is needed or was opened, and foreign cordons stay."""
    cluster = cloud.cluster
    (name,) = await cluster.add_nodes(1)
    uid = (await cluster.client.get(Node, name)).uid
    cloud.group("a", size=1)
    cloud.simulated.advance()
    instance = f"{cluster.namespace}-a-1"
    spec = PoolSpec("a", "simulated", f"{cluster.namespace}-a", 0, 4, 1.0, Template({}, (), {}))
    carrier = Carrier(cluster.client, {"simulated": cloud.simulated}, time.time)
    cordon, uncordon = Cordon("a", instance, name, uid, "idle"), Uncordon("a", name, uid, "needed")
    delete = Delete("a", instance, name, uid, "idle")

    async def cordoned() -> bool:
        return (await cluster.client.get(Node, name)).spec.unschedulable

    assert "open to pods" in (await carrier.carry_out(delete, spec)).refused
    await cluster.client.patch(Node, name, {"spec": {"unschedulable": True}})
    assert "another user or tool" in (await carrier.carry_out(cordon, spec)).refused
    assert (await carrier.carry_out(uncordon, spec)).done
    assert await cordoned(), "it is not ours to take back"
    await cluster.client.patch(Node, name, {"spec": {"unschedulable": None}})

    assert (await carrier.carry_out(cordon, spec)).done
    assert await cordoned()
    pod = cluster.pod("late", 0, 1, spec={"nodeName": name})
    await cluster.client.create(pod)
    assert "pod" in (await carrier.carry_out(delete, spec)).refused
    await cluster.kill("late")
    placed = {"gang": "g", "gangUID": "u", "size": 1, "slots": [{"slot": 0, "node": name}]}
    placement = {"metadata": {"name": "g", "namespace": cluster.namespace}, "spec": placed}
    kind = {"apiVersion": "muster.dev/v1alpha1", "kind": "Placement"}
    await cluster.client.create({**kind, **placement})
    assert "a slot of" in (await carrier.carry_out(delete, spec)).refused
    await cluster.client.delete(Placement, "g", namespace=cluster.namespace)

    racing = copy.copy(cluster.client)

    async def patch(*args: Any, **options: Any) -> Any:
        marked = await cluster.client.patch(*args, **options)
        await cluster.client.create(cluster.pod("later", 0, 1, spec={"nodeName": name}))
        return marked

    monkeypatch.setattr(racing, "patch", patch)
    late = Carrier(racing, {"simulated": cloud.simulated}, time.time)
    assert "pod" in (await late.carry_out(delete, spec)).refused, "it was bound while the node was being marked"
    await cluster.kill("later")
    paused = Carrier(cluster.client.fenced(lambda: False), {"simulated": cloud.simulated}, time.time)
    assert "no longer leads" in (await paused.carry_out(Delete("a", "i-1", "", "", "not joined"), spec)).refused
    assert "no longer leads" in (await paused.carry_out(SetSize("a", 0, 1, "idle"), spec)).refused
    assert cloud.simulated.deleted == []

    assert (await carrier.carry_out(Delete("a", instance, name, "another", "idle"), spec)).refused
    assert (await carrier.carry_out(delete, spec)).done
    assert cloud.simulated.deleted == [(spec.group, instance)]


async def test_an_instance_that_joined_behind_a_late_watch_is_not_deleted_as_overdue(cloud: Cloud) -> None:
    """A plan from a cache without the Node asks for a deletion without a node: the API server has the last word."""
    client, spaces = cloud.cluster.client, cloud.cluster.namespace
    cloud.group("a", size=2)
    cloud.simulated.advance()
    joined, missing = f"{spaces}-a-1", f"{spaces}-a-2"
    spec = PoolSpec("a", "simulated", f"{spaces}-a", 0, 4, 1.0, Template({}, (), {}))
    carrier = Carrier(client, {"simulated": cloud.simulated}, time.time)
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"{spaces}-late"}}
    await client.create({**node, "spec": {"providerID": f"simulated:///zone/{joined}"}})
    try:
        late = await carrier.carry_out(Delete("a", joined, "", "", "not joined in 1 s"), spec)
        assert late.refused == f"it has joined as node {spaces}-late"
        assert (await carrier.carry_out(Delete("a", missing, "", "", "not joined in 1 s"), spec)).done
        assert cloud.simulated.deleted == [(spec.group, missing)]
    finally:
        await client.delete(Node, f"{spaces}-late")
