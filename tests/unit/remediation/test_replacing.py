"""A machine is replaced by its pool's provider: the one in quarantine and empty, never another one."""

from __future__ import annotations

import asyncio

from muster.fleet.remediation.config import CONFIG_KEY
from muster.fleet.scaling.config import CONFIG_KEY as SCALING_KEY
from muster.fleet.scaling.providers.simulated import SimulatedCloud, SimulatedGroup, SimulatedInstance
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
        await ward.until("the session ends", lambda: ward.call("GET", path)["status"]["phase"] == "Released")
        assert not ward.out_of_use()

    ward.run(story)


def test_where_no_pool_names_the_node_a_person_is_asked() -> None:
    ward, cloud = ward_with_cloud()
    ward.add_node("other", pool="elsewhere")

    async def story() -> None:
        await asyncio.sleep(2)
        ward.finds("other", "950")
        await ward.until("a person is asked", lambda: ward.rung("other") == "Handed")
        assert not cloud.deleted

    ward.run(story)


def test_a_machine_is_not_replaced_while_somebody_has_paused_it_or_work_has_come_back() -> None:
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
