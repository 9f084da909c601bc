"""The controller of balloons in virtual time, with the scheduler, kubelets, and Deployments as Kubernetes has them."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fuzz.weather import Weather, Weathered
from muster.embedded.apiserver.request import Request
from muster.fleet.balloons.config import CONFIG_KEY, CONFIG_MAP
from muster.fleet.balloons.controller import BalloonController
from muster.fleet.balloons.decide import WAITS_S
from muster.fleet.balloons.deployment import PRIORITY_CLASS, deployment_name
from muster.kube.errors import NotFound
from muster.kube.objects.apps import Deployment
from muster.scheduler.controller import SchedulerController
from muster.sim.nodes import EmptyRuntime, SimNodes
from muster.sim.virtual.cluster import VirtualCluster
from muster.sim.virtual.loop import VirtualLoop
from tests.support.workloads import crd

GPU = "nvidia.com/gpu"
SYSTEM = "muster-system"
MAPS = f"/api/v1/namespaces/{SYSTEM}/configmaps"
PODS = f"/api/v1/namespaces/{SYSTEM}/pods"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{SYSTEM}/deployments"
CAPACITY = {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: "8"}
JOINING = {"key": "muster.dev/joining", "value": "pending", "effect": "NoSchedule"}
COST = "controller.kubernetes.io/pod-deletion-cost"


class World:
    """A cluster with so many nodes, all of whose parts run.

    The controllers' clock is `ahead_s` ahead of the API server's; the scheduler's requests take about `latency_s`.
    """

    def __init__(self, nodes: int, *, ahead_s: float = 0.0, latency_s: float = 0.0) -> None:
        self.ahead_s, self.latency_s = ahead_s, latency_s
        self.loop = VirtualLoop.new()
        self.cluster = VirtualCluster(self.loop, random.Random(7))
        self.count = nodes
        for name in (SYSTEM, "kube-node-lease"):
            try:
                self.call("GET", f"/api/v1/namespaces/{name}")
            except NotFound:
                self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        self.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd(Deployment.RESOURCE))
        body = {"metadata": {"name": PRIORITY_CLASS}, "value": -5, "preemptionPolicy": "Never"}
        self.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        self.made = 0
        """Balloons made until now."""
        self.writes: list[str] = []
        self.cluster.trace.listeners.append(self.heard)

    def heard(self, now: float, client: str, request: Request, code: int, body: bytes) -> None:
        if client == "balloons" and request.method != "GET":
            self.writes.append(f"{request.method} {request.path}")

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        return self.cluster.call(method, path, body)

    def configure(self, replicas: int | str) -> None:
        text = f"pools:\n- name: all\n  nodeSelector: {{pool: a}}\n  replicas: {replicas}\n  resources: {{{GPU}: 8}}\n"
        body = {"metadata": {"name": CONFIG_MAP}, "data": {CONFIG_KEY: text}}
        try:
            self.call("PATCH", f"{MAPS}/{CONFIG_MAP}", body)
        except NotFound:
            self.call("POST", MAPS, body)

    def pods(self, label: str = "muster.dev/balloon") -> list[dict[str, Any]]:
        items = self.call("GET", PODS)["items"]
        return [pod for pod in items if label in pod["metadata"]["labels"]]

    def balloons(self) -> list[str]:
        """The node of each, "" where it waits for one; in order."""
        alive = [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]]
        return sorted(pod["spec"].get("nodeName", "") for pod in alive)

    def waiting(self) -> list[float]:
        """Since when each balloon that has no node waits for one."""
        lone = [pod["metadata"] for pod in self.pods() if not pod["spec"].get("nodeName")]
        return [datetime.fromisoformat(meta["creationTimestamp"]).timestamp() for meta in lone]

    def replicas(self) -> int:
        count: int = self.call("GET", f"{DEPLOYMENTS}/{deployment_name('all')}")["spec"]["replicas"]
        return count

    def add_gang(self, name: str, size: int, gpus: int = 8) -> None:
        for slot in range(size):
            meta = {
                "name": f"{name}-{slot}-0",
                "labels": {"muster.dev/gang": name, "muster.dev/slot": str(slot)},
                "annotations": {
                    "muster.dev/gang-size": str(size),
                    "muster.dev/gang-uid": name,
                    "muster.dev/attempt": "0",
                },
            }
            container = {"name": "worker", "image": "none", "resources": {"limits": {GPU: str(gpus)}}}
            spec = {"schedulerName": "muster", "terminationGracePeriodSeconds": 0, "containers": [container]}
            self.call("POST", PODS, {"metadata": meta, "spec": spec})

    def end_gang(self, name: str) -> None:
        """As when its job is deleted, and with it all that belongs to that."""
        with contextlib.suppress(NotFound):
            self.call("DELETE", f"/apis/muster.dev/v1alpha1/namespaces/{SYSTEM}/placements/{name}")
        for pod in self.pods("muster.dev/gang"):
            if pod["metadata"]["labels"]["muster.dev/gang"] == name:
                self.call("DELETE", f"{PODS}/{pod['metadata']['name']}")

    def on(self, gang: str) -> set[str]:
        """Nodes on which members of the gang run."""
        found = [pod for pod in self.pods("muster.dev/gang") if pod["metadata"]["labels"]["muster.dev/gang"] == gang]
        return {pod["spec"]["nodeName"] for pod in found if pod["status"]["phase"] == "Running"}

    async def deployments(self) -> None:
        """What their controllers do: make pods; of those too many the first to go is one that waits, or costs least."""
        while True:
            await asyncio.sleep(0.1)
            items = self.call("GET", "/apis/apps/v1/deployments")["items"]
            alive = [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]]
            wanted = items[0]["spec"]["replicas"] if items else 0
            for _ in range(wanted - len(alive)):
                self.made += 1
                template = items[0]["spec"]["template"]
                meta = {**template["metadata"], "name": f"balloon-{self.made}"}
                self.call("POST", PODS, {"metadata": meta, "spec": template["spec"]})
            alive.sort(
                key=lambda pod: (
                    bool(pod["spec"].get("nodeName")),
                    int(pod["metadata"].get("annotations", {}).get(COST, 0)),
                )
            )
            for pod in alive[: max(0, len(alive) - wanted)]:
                self.call("DELETE", f"{PODS}/{pod['metadata']['name']}")

    def run(self, story: Callable[[], Any]) -> None:
        async def main() -> None:
            self.cluster.start()
            sim = SimNodes(
                self.cluster.client("kubelets"),
                runtime=EmptyRuntime(),
                now=lambda: datetime.fromtimestamp(self.loop.now, UTC),
            )
            common: dict[str, Any] = {
                "clock": lambda: self.loop.now + self.ahead_s,
                "rng": random.Random(1),
                "registry": CollectorRegistry(),
            }
            slow = Weathered(self.loop, Weather(1e12, latency_s=self.latency_s), "scheduler", random.Random(2))
            client = self.cluster.client("scheduler", slow if self.latency_s else None)
            scheduler = SchedulerController(client, SYSTEM, "test", **common)
            controller = BalloonController(self.cluster.client("balloons"), SYSTEM, "none", **common)
            async with sim:
                await sim.add(self.count, capacity=CAPACITY, labels={"pool": "a"})
                works = [scheduler.run(asyncio.Event()), controller.run(), self.deployments()]
                tasks = [asyncio.create_task(work) for work in works]
                await story()
                for task in tasks:
                    assert not task.done(), task
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

        try:
            self.loop.run(main())
        finally:
            self.loop.wind_up()


def names(*numbers: int) -> list[str]:
    return [f"sim-{number:05}" for number in numbers]


def test_clock_ahead_of_the_api_server_does_not_age_new_balloons() -> None:
    """Issue 11 (simulations): each new balloon was removed at once, and made again every five minutes for ever."""
    world = World(4, ahead_s=60.0, latency_s=0.5)

    async def story() -> None:
        world.configure(9)
        await asyncio.sleep(15)
        assert world.balloons() == names(0, 1, 2, 3)
        assert world.made == 4

    world.run(story)


@pytest.mark.slow
def test_balloons_fill_idle_nodes_make_room_for_gangs_and_return() -> None:
    world = World(4)

    async def story() -> None:
        world.configure(9)
        await asyncio.sleep(15)
        assert world.balloons() == names(0, 1, 2, 3)
        world.add_gang("first", 3)
        await asyncio.sleep(10)
        taken = world.on("first")
        assert len(taken) == 3
        assert world.balloons() == sorted(set(names(0, 1, 2, 3)) - taken)
        world.add_gang("second", 4)
        await asyncio.sleep(10)
        world.end_gang("first")
        await asyncio.sleep(15)
        assert len(world.on("second")) == 4
        assert world.balloons() == []
        assert world.replicas() == 0
        world.end_gang("second")
        await asyncio.sleep(15)
        assert world.balloons() == names(0, 1, 2, 3)

    world.run(story)


def test_a_node_that_is_lost_takes_its_balloon_with_it_and_no_other_is_made() -> None:
    world = World(4)

    async def story() -> None:
        world.configure(4)
        await asyncio.sleep(15)
        made = world.made
        world.call("PATCH", "/api/v1/nodes/sim-00002", {"spec": {"unschedulable": True}})
        await asyncio.sleep(10)
        assert world.balloons() == names(0, 1, 3)
        world.call("PATCH", "/api/v1/nodes/sim-00000", {"spec": {"taints": [JOINING]}})
        await asyncio.sleep(10)
        assert world.balloons() == names(1, 3)
        assert world.made == made, "none was made only to wait"

    world.run(story)


@pytest.mark.slow
def test_at_rest_nothing_is_written() -> None:
    world = World(4)

    async def story() -> None:
        world.configure(3)
        world.add_gang("work", 2)
        await asyncio.sleep(60)
        assert len(world.balloons()) == 2
        assert world.writes
        before = len(world.writes)
        await asyncio.sleep(600)
        assert len(world.writes) == before

    world.run(story)


def test_partly_used_nodes_have_no_room_for_a_balloon() -> None:
    world = World(2)

    async def story() -> None:
        world.add_gang("small", 1, gpus=1)
        await asyncio.sleep(10)
        world.configure(2)
        await asyncio.sleep(15)
        (taken,) = world.on("small")
        assert world.balloons() == [name for name in names(0, 1) if name != taken]

    world.run(story)


def test_without_the_configuration_there_are_none_and_a_broken_one_changes_nothing() -> None:
    world = World(3)

    async def story() -> None:
        world.configure(3)
        await asyncio.sleep(15)
        world.configure("many")
        await asyncio.sleep(15)
        assert len(world.balloons()) == 3
        world.call("PATCH", "/api/v1/nodes/sim-00001", {"spec": {"unschedulable": True}})
        await asyncio.sleep(10)
        assert world.balloons() == names(0, 2), "they follow the nodes all the same"
        events = world.call("GET", f"/api/v1/namespaces/{SYSTEM}/events")["items"]
        (said,) = (event for event in events if event["reason"] == "BadConfig")
        assert "line 4: pools[0].replicas: Expected `int`, got `str`" in said["message"]
        world.call("DELETE", f"{MAPS}/{CONFIG_MAP}")
        await asyncio.sleep(15)
        assert world.balloons() == []

    world.run(story)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_no_balloon_waits_long_or_stays_where_it_must_not_after_any_events(seed: int) -> None:
    world = World(5)
    rng = random.Random(seed)

    async def story() -> None:
        world.configure(3 + 2 * (seed % 2))
        gangs: list[str] = []
        for number in range(40):
            node = f"/api/v1/nodes/sim-{rng.randrange(5):05}"
            match rng.randrange(5):
                case 0:
                    world.call("PATCH", node, {"spec": {"unschedulable": rng.random() < 0.5}})
                case 1:
                    taints = [JOINING] if rng.random() < 0.5 else []
                    world.call("PATCH", node, {"spec": {"taints": taints}})
                case 2:
                    gangs.append(f"g{number}")
                    world.add_gang(gangs[-1], rng.randrange(1, 5))
                case 3 if gangs:
                    world.end_gang(gangs.pop(rng.randrange(len(gangs))))
            for second in range(rng.randrange(1, 8)):
                await asyncio.sleep(1)
                alone = {
                    each["metadata"]["name"]
                    for each in world.call("GET", "/api/v1/nodes")["items"]
                    if each["spec"].get("unschedulable") or JOINING in each["spec"].get("taints", ())
                }
                assert second < 2 or not alone & set(world.balloons())
                assert all(world.loop.now - since < WAITS_S + 3 for since in world.waiting())

    world.run(story)
