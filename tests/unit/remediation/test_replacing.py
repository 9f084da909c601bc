"""A machine is replaced by its pool's provider: the one in quarantine and empty, never another one."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from muster.fleet.providers.simulated import SimulatedCloud, SimulatedGroup, SimulatedInstance
from muster.fleet.remediation.config import CONFIG_KEY
from muster.fleet.remediation.repairs.replacement import ByProvider
from muster.fleet.scaling.config import CONFIG_KEY as SCALING_KEY
from muster.fleet.scaling.snapshot import Group, Instance, PoolSpec
from muster.kube.connection.transport import NotLeading
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node, NodeSpec
from tests.unit.remediation.virtualward import OPEN, WORKER, VirtualWard

REPLACE = """
version: 1
revision: t
extends: default
codes: {xid: {950: {what: dead, action: replace, fault: hardware}}}
"""
SCALING = """
pools:
- name: cloud
  provider: simulated
  group: g
  max: 4
  template: {labels: {muster.dev/pool: p}, capacity: {cpu: 8}}
"""


def ward_with_cloud() -> tuple[VirtualWard, SimulatedCloud]:
    ward = VirtualWard(OPEN, REPLACE)
    cloud = SimulatedCloud(lambda: ward.loop.now)
    ward.providers["simulated"] = cloud
    group = cloud.groups["g"] = SimulatedGroup(size=2)
    for name in ("n0", "n1"):
        ward.add_node(name)
        group.instances[name] = SimulatedInstance(name, "g", up_at=ward.loop.now)
    ward.call("POST", f"{WORKER}/configmaps", {"metadata": {"name": "muster-scaling"}, "data": {SCALING_KEY: SCALING}})
    return ward, cloud


@pytest.mark.slow
def test_the_broken_machine_is_replaced_once_and_its_session_ends_with_its_node() -> None:
    ward, cloud = ward_with_cloud()
    ward.add_pod("work", "n0")

    async def story() -> None:
        await asyncio.sleep(2)
        ward.finds("n0", "950")
        await ward.until("the provider was asked", lambda: bool(cloud.deleted))
        assert not ward.pods("n0")
        assert ward.out_of_use() == {"n0"}
        session = ward.session("n0")
        assert session is not None
        await asyncio.sleep(200)
        assert cloud.deleted == [("g", "n0")]
        ward.call("DELETE", "/api/v1/nodes/n0")
        path = f"/apis/muster.dev/v1alpha1/noderemediations/{session['metadata']['name']}"
        await ward.until("the session ends", lambda: ward.call("GET", path)["status"]["state"] == "Released")
        assert not ward.out_of_use()

    ward.run(story)


def test_where_no_pool_names_the_node_a_person_is_asked() -> None:
    ward, cloud = ward_with_cloud()
    ward.add_node("other", pool="elsewhere")

    async def story() -> None:
        await asyncio.sleep(2)
        ward.finds("other", "950")
        await ward.until("a person is asked", lambda: ward.rung("other") == "NeedsOperator")
        assert not cloud.deleted

    ward.run(story)


def test_machine_is_not_replaced_while_paused_or_in_use_again() -> None:
    ward, cloud = ward_with_cloud()

    async def story() -> None:
        await asyncio.sleep(2)
        ward.add_pod("late", "n0")
        path = f"{WORKER}/pods/late"
        ward.call("PATCH", path, {"metadata": {"finalizers": ["example.com/keeps"]}})
        ward.finds("n0", "950")
        await ward.until("it is drained", lambda: ward.rung("n0") == "Drain")
        text = f"{OPEN}pause: true\n"
        ward.call("PATCH", f"{WORKER}/configmaps/muster-health", {"data": {CONFIG_KEY: text}})
        await asyncio.sleep(5)
        ward.call("PATCH", path, {"metadata": {"finalizers": None}})
        await asyncio.sleep(60)
        assert ward.rung("n0") == "Drain"
        assert not cloud.deleted
        ward.call("PATCH", f"{WORKER}/configmaps/muster-health", {"data": {CONFIG_KEY: OPEN}})
        await ward.until("the provider was asked", lambda: bool(cloud.deleted))

    ward.run(story)


async def test_a_machine_that_has_the_name_of_one_that_is_gone_is_not_replaced_for_it() -> None:
    """Between our look at the node and that at the provider its machine was replaced, by a leader before us."""
    cloud = Instances(Instance("vm-2", node_name="n0"), Instance("vm-3", node_name="n1"))
    leads = True

    def require_leading(what: str) -> None:
        if not leads:
            raise NotLeading(what)

    replacer = ByProvider({"simulated": cloud}, require_leading)
    replacer.config_changed(None, ConfigMap(metadata=ObjectMeta(name="muster-scaling"), data={SCALING_KEY: SCALING}))
    labels = {"muster.dev/pool": "p"}
    gone = Node(metadata=ObjectMeta(name="n0", labels=labels), spec=NodeSpec(provider_id="cloud:///zone/vm-1"))
    await replacer.replace(gone)
    assert cloud.deleted == []
    await replacer.replace(Node(metadata=ObjectMeta(name="n1", labels=labels)))
    named = replace(gone, spec=NodeSpec(provider_id="cloud:///zone/vm-2"))
    leads = False
    with pytest.raises(NotLeading):  # the lease was lost while the provider answered
        await replacer.replace(named)
    leads = True
    await replacer.replace(named)
    assert cloud.deleted == ["vm-3", "vm-2"]


class Instances:
    """A provider that has these, and forgets none."""

    def __init__(self, *instances: Instance) -> None:
        self._instances = instances
        self.deleted: list[str] = []

    async def look(self, pool: PoolSpec) -> Group:
        return Group(len(self._instances), self._instances)

    async def set_size(self, pool: PoolSpec, size: int) -> None:
        raise AssertionError(size)

    async def delete(self, pool: PoolSpec, instance: str, *, replace: bool) -> None:
        assert replace
        self.deleted.append(instance)

    async def close(self) -> None:
        pass
