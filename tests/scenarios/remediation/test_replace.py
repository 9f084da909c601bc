"""A machine that is replaced by its pool's provider, and the node that comes back under its name."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import pytest
from prometheus_client import CollectorRegistry

from muster.api.handover import Handover
from muster.api.names import HEALTH_CONFIG_MAP, HEALTH_POLICY_KEY, LABEL_PREFLIGHT
from muster.api.node_remediation import NodeRemediation
from muster.api.quarantine import quarantined
from muster.fleet.providers.simulated import SimulatedCloud, SimulatedGroup, SimulatedInstance
from muster.fleet.remediation.config import CONFIG_KEY
from muster.fleet.remediation.controller import RemediationController
from muster.fleet.scaling.config import CONFIG_KEY as SCALING_KEY
from muster.fleet.scaling.config import CONFIG_MAP as SCALING_MAP
from muster.fleet.scaling.snapshot import PoolSpec
from muster.kube.errors import NotFound
from muster.kube.objects.coordination import Lease
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.sim.nodeobjects import LEASE_NAMESPACE
from tests.scenarios.preflight.conftest import CAPACITY, PENDING, Trusting, trusting
from tests.scenarios.remediation.conftest import OPEN, Findings
from tests.scenarios.scheduler.conftest import POOL
from tests.support.waiting import until

__all__ = ["trusting"]  # a fixture

pytestmark = pytest.mark.slow

DEAD, SICK = "950", "951"
POLICY = f"""
version: 1
revision: test
extends: default
codes:
  xid:
    {DEAD}: {{what: past mending, action: replace, fault: hardware, test: 1}}
    {SICK}: {{what: doubtful, action: quarantine, fault: hardware, test: 1}}
"""


class Cloud(SimulatedCloud):
    """Notes what a machine was when its deletion was asked for."""

    def __init__(self, client: Trusting, nodes: list[str]) -> None:
        super().__init__(time.time)
        self._trusting = client
        instances = {name: SimulatedInstance(name, "g", up_at=time.time()) for name in nodes}
        self.groups["g"] = SimulatedGroup(size=len(nodes), instances=instances)
        self.seen: list[tuple[str, bool, bool, set[str]]] = []
        """Of each: its node, whether another one takes its place, whether it was in quarantine, and its work."""

    async def delete(self, pool: PoolSpec, instance: str, *, replace: bool) -> None:
        client = self._trusting.client
        node = await client.get(Node, instance)
        pods = (await client.list(Pod, field_selector=f"spec.nodeName={instance}")).items
        work = {pod.name for pod in pods if LABEL_PREFLIGHT not in pod.metadata.labels}
        self.seen.append((instance, replace, quarantined(node), work))
        await super().delete(pool, instance, replace=replace)


async def remediate(trusting: Trusting, cloud: Cloud) -> None:
    """Have a controller act, with that cloud for the pool of the nodes."""
    pool = {
        "name": "pool",
        "provider": "simulated",
        "group": "g",
        "max": 8,
        "template": {"labels": {POOL: trusting.namespace}, "capacity": {"cpu": 96}},
    }
    for name, data in (
        (HEALTH_CONFIG_MAP, {CONFIG_KEY: OPEN, HEALTH_POLICY_KEY: POLICY}),
        (SCALING_MAP, {SCALING_KEY: json.dumps({"pools": [pool]})}),
    ):
        meta = ObjectMeta(name=name, namespace=trusting.namespace)
        await trusting.client.create(ConfigMap(metadata=meta, data=data))
    controller = RemediationController(
        trusting.client,
        trusting.namespace,
        handover=Handover(),
        providers={"simulated": cloud},
        registry=CollectorRegistry(),
    )
    trusting.tasks.append(asyncio.create_task(controller.run()))


async def test_a_machine_is_replaced_in_quarantine_and_empty_and_its_successor_is_trusted_on_its_own_test(
    trusting: Trusting,
) -> None:
    client, findings = trusting.client, Findings(trusting.client)
    await trusting.configure("image: none\nresources: {cpu: 100m}\nretests: {atOnce: 0}\n")
    trusting.control()
    nodes = await trusting.add_nodes(2)
    cloud = Cloud(trusting, nodes)
    try:
        await trusting.until_tested(*nodes)
        await trusting.trusted(*nodes)
        await trusting.cluster.add_gang("train", 1)
        await trusting.cluster.until_bound("train", 1)
        [name] = (await trusting.cluster.bound("train")).values()
        await remediate(trusting, cloud)
        await findings.finds(name, DEAD)
        await until("the machine is replaced", lambda: cloud.deleted)
        assert cloud.seen == [(name, True, True, set())]
        old = await findings.session(name)
        assert old is not None
        assert old.status.rung == "Replace"

        # The machine is off; the cloud's node controller deletes its Node, and another one takes the name.
        trusting.sim.leave(name)
        await client.delete(Lease, name, namespace=LEASE_NAMESPACE)
        await client.delete(Node, name)
        for pod in (await client.list(Pod, field_selector=f"spec.nodeName={name}")).items:
            with contextlib.suppress(NotFound):  # as Kubernetes' garbage collector does, after 40 s
                await client.delete(Pod, pod.name, namespace=pod.namespace, grace_s=0)

        async def ended() -> bool:
            return (await client.get(NodeRemediation, old.name)).status.state == "Released"

        await until("its session ends with it", ended)
        ended_as = await client.get(NodeRemediation, old.name)
        labels = {POOL: trusting.namespace}
        await trusting.sim.join(name, capacity=CAPACITY, labels=labels, taints=(PENDING,), ready_after_s=0.0)
        await trusting.cluster.add_gang("next", 2)  # needs both
        await trusting.until_test(name)
        assert await trusting.cluster.bound("next") == {}, "passes of the machine before do not count for this one"
        assert await findings.session(name) is None
        assert not quarantined(await client.get(Node, name))
        await trusting.end_test(name)
        await trusting.cluster.until_bound("next", 2, "the new machine has passed")

        await findings.finds(name, SICK)

        async def out() -> NodeRemediation | None:
            found = await findings.session(name)
            return found if found is not None and found.status.rung == "Quarantine" else None

        session: NodeRemediation = await until("the new node has a session of its own", out)
        assert session.spec.node_uid == (await client.get(Node, name)).uid
        assert [cause.code for cause in session.spec.cause] == [SICK]
        assert await client.get(NodeRemediation, old.name) == ended_as
        assert cloud.deleted == [("g", name)], "once"
    finally:
        await findings.forget(nodes)
