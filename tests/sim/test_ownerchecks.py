"""Issue 11 (simulations): the checker of nodes and teams knows how late a write may arrive."""

from __future__ import annotations

import asyncio
import json

import pytest
from msgspec.structs import replace

from fuzz.checks import Violated
from fuzz.fleet.machines import own_source
from fuzz.fleet.run import FleetRun
from fuzz.fleet.scenario import fleet_scenario
from muster.kube.objects.node import Node
from muster.sim.virtual.loop import VirtualLoop
from muster.sim.virtual.sealed import sealed

AFTER_S = 4.0
"""Between the bind of a pod and the write that gives its node to a team: less than the latest write takes."""


def give_away_under_a_pod(late: float) -> None:
    """Have a controller give a node to a team while a pod runs there."""
    scenario = fleet_scenario(960041, own_source())
    weather = replace(scenario.weather, late=late, latency_s=0.001, slow=())
    loop = VirtualLoop.new()

    async def story(run: FleetRun) -> None:
        run.cluster.start()
        run.view.begin()
        ready = {"conditions": [{"type": "Ready", "status": "True"}], "allocatable": {"cpu": "8", "pods": "9"}}
        run.cluster.call("POST", "/api/v1/nodes", {"metadata": {"name": "n"}})
        run.cluster.call("PATCH", "/api/v1/nodes/n/status", {"status": ready})
        run.cluster.call("PATCH", "/api/v1/nodes/n", {"spec": {"taints": []}})
        await asyncio.sleep(20.0)  # the kubelet that does not renew its lease is missed after 40 s
        containers = [{"name": "worker", "image": "none"}]
        pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": containers}}
        run.cluster.call("POST", "/api/v1/namespaces/default/pods", pod)
        await asyncio.sleep(AFTER_S)
        record = json.dumps({"team": "red"})
        patch = {
            "metadata": {"labels": {"muster.dev/team": "red"}, "annotations": {"muster.dev/team-record": record}},
            "spec": {"taints": [{"key": "muster.dev/team", "value": "red", "effect": "NoSchedule"}]},
        }
        await run.cluster.client("controller-0").patch(Node, "n", patch)

    try:
        with sealed(loop):
            loop.run(story(FleetRun(replace(scenario, weather=weather, replica_faults=()), loop)))
    finally:
        loop.wind_up()


def test_late_write_decided_before_the_bind_is_allowed() -> None:
    give_away_under_a_pod(late=0.2)


def test_write_in_time_under_a_pod_is_a_violation() -> None:
    with pytest.raises(Violated, match="gave n of no team to red under p"):
        give_away_under_a_pod(late=0.0)
