"""The controller and the scheduler in virtual time: from a new node to work on it, and at rest nothing is written."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from muster.api.preflight import Preflight
from muster.cli.jobs.explain import read_trusting
from muster.fleet.preflight.config import CONFIG_KEY, CONFIG_MAP
from muster.fleet.preflight.controller import PreflightController
from muster.gputest.summary import SUMMARY_SCHEMA, FailureRow, GpuRow, Summary
from muster.kube.objects.struct import encode
from muster.scheduler.controller import SchedulerController
from muster.scheduler.explain.loading import load_state
from muster.scheduler.explain.why_waiting import explain
from muster.scheduler.plan import Settings
from muster.sim import nodeobjects
from muster.sim.virtual.cluster import VirtualCluster
from muster.sim.virtual.loop import VirtualLoop

NAMESPACE = "muster-system"
CAPACITY = {"cpu": "96", "memory": "1Ti", "pods": "110", "nvidia.com/gpu": "8"}
TEXT = "image: none\nretests: {everyHours: 1}\n"
PREFLIGHTS = "/apis/muster.dev/v1alpha1/preflights"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


class World:
    """A cluster, its scheduler and its controller of preflight; tests end after 20 s with what `verdicts` says."""

    def __init__(self, controllers: int = 1) -> None:
        self.loop = VirtualLoop.new()
        self.cluster = VirtualCluster(self.loop, random.Random(7))
        self.verdicts: dict[str, bool] = {}
        self.hanging: set[str] = set()
        self.slow: set[str] = set()
        self.unpullable: set[str] = set()
        self.tested: list[str] = []
        self.levels: list[int] = []
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": "jobs"}})
        priority = {"metadata": {"name": "muster-preflight"}, "value": -4}
        self.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", priority)
        maps = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        self.call("POST", maps, {"metadata": {"name": CONFIG_MAP}, "data": {CONFIG_KEY: TEXT}})
        self.controllers = [self.controller(number) for number in range(controllers)]
        self.scheduler = SchedulerController(
            self.cluster.client("scheduler"),
            NAMESPACE,
            "test",
            clock=lambda: self.loop.now,
            settings=Settings(preflight_required=True),
            rng=random.Random(2),
            registry=CollectorRegistry(),
        )

    def controller(self, number: int) -> PreflightController:
        return PreflightController(
            self.cluster.client(f"controller-{number}"),
            NAMESPACE,
            "none",
            clock=lambda: self.loop.now,
            rng=random.Random(number),
            registry=CollectorRegistry(),
        )

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        return self.cluster.call(method, path, body)

    @property
    def date(self) -> datetime:
        return datetime.fromtimestamp(self.loop.now, UTC)

    @property
    def stamp(self) -> str:
        return self.date.strftime("%Y-%m-%dT%H:%M:%SZ")

    def add_node(self, name: str, *taints: dict[str, str], **labels: str) -> None:
        self.call("POST", "/api/v1/nodes", nodeobjects.node(name, "10.0.0.1", 1, CAPACITY, labels, self.date))
        # Less what admission put there, which the node lifecycle controller would take away.
        self.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": list(taints) or None}})

    def reboot(self, name: str, boot: int) -> None:
        patch = {"status": {"nodeInfo": nodeobjects.info(name, boot)}}
        self.call("PATCH", f"/api/v1/nodes/{name}/status", patch)

    def add_pod(self, name: str, labels: dict[str, str] | None = None) -> None:
        limits = {"nvidia.com/gpu": "8"}
        spec = {
            "schedulerName": "muster",
            "containers": [{"name": "c", "image": "none", "resources": {"limits": limits}}],
        }
        attempt = name.rpartition("-")[2]
        gang = {"muster.dev/gang-size": "1", "muster.dev/gang-uid": "uid-train", "muster.dev/attempt": attempt}
        meta = {"name": name, "labels": labels or {}, "annotations": gang if labels else {}}
        self.call("POST", "/api/v1/namespaces/jobs/pods", {"metadata": meta, "spec": spec})

    def remove_pod(self, name: str) -> None:
        self.call("DELETE", f"/api/v1/namespaces/jobs/pods/{name}", {"gracePeriodSeconds": 0})

    def add_member(self, name: str) -> None:
        """The only pod of a gang, whose node is kept for it."""
        self.add_pod(name, labels={"muster.dev/gang": "train", "muster.dev/slot": "0"})

    def node_of(self, name: str) -> str:
        return str(self.call("GET", f"/api/v1/namespaces/jobs/pods/{name}")["spec"].get("nodeName", ""))

    def pending(self) -> set[str]:
        nodes = self.call("GET", "/api/v1/nodes")["items"]
        return {
            node["metadata"]["name"]
            for node in nodes
            if any(taint["key"] == "muster.dev/preflight" for taint in node["spec"].get("taints", ()))
        }

    def records(self) -> dict[str, dict[str, Any]]:
        return {each["metadata"]["name"]: each["spec"] for each in self.call("GET", PREFLIGHTS)["items"]}

    def version(self) -> int:
        return int(self.call("GET", PREFLIGHTS)["metadata"]["resourceVersion"])

    async def kubelets(self) -> None:
        """Tests start at once and end 20 s later; what is deleted is gone at once."""
        started: dict[str, float] = {}
        while True:
            await asyncio.sleep(1)
            for pod in self.call("GET", PODS)["items"]:
                meta, node = pod["metadata"], pod["spec"].get("nodeName", "")
                path = f"{PODS}/{meta['name']}"
                if "deletionTimestamp" in meta:
                    self.call("DELETE", path, {"gracePeriodSeconds": 0})
                elif pod["spec"]["containers"][0]["image"] in self.unpullable:
                    continue
                elif node and pod["status"]["phase"] == "Pending":
                    started[meta["uid"]] = self.loop.now
                    state = {"running": {"startedAt": self.stamp}}
                    self.write(path, "Running", state)
                elif pod["status"]["phase"] == "Running" and self.is_due(node, started[meta["uid"]]):
                    self.end(path, node, int(meta["labels"].get("muster.dev/preflight", "1")))

    def is_due(self, node: str, started: float) -> bool:
        return node not in self.hanging and self.loop.now - started >= 20

    def end(self, path: str, node: str, level: int) -> None:
        passed = self.verdicts.get(node, True)
        self.tested.append(node)
        self.levels.append(level)
        figures = (3000.0 if node in self.slow else 4100.0,)
        said = Summary(
            schema=SUMMARY_SCHEMA,
            level=level,
            backend="nvidia",
            passed=passed,
            versions={"driver": "570"},
            models=("H200",),
            names=("memory_bandwidth_gb_per_s",),
            gpus=(GpuRow("GPU-0", 0, "0000:00:00.0", figures),),
            failures=() if passed else (FailureRow("memory", "wrong-word", 0, "word 7"),),
        )
        code = 0 if passed else 1
        ended = {"exitCode": code, "message": encode(said).decode(), "startedAt": self.stamp, "finishedAt": self.stamp}
        self.write(path, "Succeeded" if passed else "Failed", {"terminated": {**ended, "reason": "Completed"}})

    def write(self, path: str, phase: str, state: dict[str, Any]) -> None:
        container = {"name": "test", "image": "none", "imageID": "", "ready": False, "restartCount": 0, "state": state}
        self.call("PATCH", f"{path}/status", {"status": {"phase": phase, "containerStatuses": [container]}})

    def others(self) -> list[Any]:
        """What else runs."""
        return []

    def run(self, story: Callable[[], Any]) -> None:
        async def main() -> None:
            works = [*(each.run() for each in self.controllers), self.scheduler.run(asyncio.Event()), self.kubelets()]
            tasks = [asyncio.create_task(work) for work in [*works, *self.others()]]
            await story()
            for task in tasks:
                assert not task.done(), task.exception()
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        try:
            self.loop.run(main())
        finally:
            self.loop.wind_up()


@pytest.mark.slow
def test_a_new_node_is_tested_and_gets_work_and_then_nothing_is_written_any_more() -> None:
    world = World()
    world.verdicts["bad"] = False

    async def story() -> None:
        world.add_node("good")
        world.add_node("bad")
        world.add_node("plain", **{"muster.dev/health": "ignore"})
        await asyncio.sleep(5)
        assert world.pending() == {"good", "bad"}
        await asyncio.sleep(40)
        assert world.pending() == {"bad"}
        assert sorted(world.tested) == ["bad", "good"]
        assert {name: spec["passed"] for name, spec in world.records().items()} == {"good": True, "bad": False}
        for name in ("one", "two", "three"):
            world.add_pod(name)
        await asyncio.sleep(10)
        assert {world.node_of(name) for name in ("one", "two", "three")} == {"good", "plain", ""}
        before = world.version()
        await asyncio.sleep(1800)
        assert world.version() == before
        assert world.call("GET", PODS)["items"] == []

    world.run(story)


def test_node_is_tested_once_though_its_record_is_heard_of_late() -> None:
    """The test's pod is gone before the watch of records brings what the controller wrote itself."""
    world = World()
    client = world.cluster.client("late")
    watch = client.watch_batches

    async def late(kind: type[Any], *arguments: Any, **options: Any) -> AsyncIterator[Any]:
        async for batch in watch(kind, *arguments, **options):
            await asyncio.sleep(10 if kind is Preflight else 0)
            yield batch

    client.watch_batches = late  # type: ignore[method-assign, assignment]
    world.controllers = [
        PreflightController(client, NAMESPACE, "none", clock=lambda: world.loop.now, registry=CollectorRegistry())
    ]

    async def story() -> None:
        world.add_node("a")
        await asyncio.sleep(90)
        assert world.tested == ["a"]
        assert world.pending() == set()

    world.run(story)


def test_after_a_reboot_nothing_starts_before_the_test_though_no_taint_came_back() -> None:
    world = World()

    async def story() -> None:
        world.add_node("a")
        await asyncio.sleep(40)
        assert world.pending() == set()
        world.reboot("a", 2)
        await asyncio.sleep(0.05)  # which a watch takes, less than the controller's answer to it
        world.add_pod("work")
        await asyncio.sleep(10)
        assert world.node_of("work") == ""
        assert world.pending() == {"a"}
        await asyncio.sleep(40)
        assert world.node_of("work") == "a"
        assert world.tested == ["a", "a"]
        assert world.records()["a"]["bootID"] == "a-boot-2"

    world.run(story)


def test_outside_explanations_know_whether_nodes_need_tests() -> None:
    world = World()
    config = f"/api/v1/namespaces/{NAMESPACE}/configmaps/{CONFIG_MAP}"

    async def story() -> None:
        world.hanging.add("a")
        world.add_node("a")
        world.add_pod("work")
        await asyncio.sleep(10)
        client = world.cluster.client("cli")
        assert await read_trusting(client) is None
        world.call("PATCH", config, {"data": {"required": "true"}})
        assert await read_trusting(client) == NAMESPACE
        state = await load_state(client, trusting=NAMESPACE)
        gang = next(gang for gang in state.gangs.values() if gang.name == "work")
        assert "1 untested (no test yet)" in explain(state.snapshot(), gang, now=world.loop.now).summary

    world.run(story)


def test_a_gang_that_waits_for_its_rebooted_node_does_not_keep_the_test_away_from_it() -> None:
    """No spare node is there: the gang keeps its slot, and continues where it was once the node has passed."""
    world = World()

    async def story() -> None:
        world.add_node("a")
        await asyncio.sleep(40)
        world.add_member("train-0-0")
        await asyncio.sleep(10)
        assert world.node_of("train-0-0") == "a"
        world.reboot("a", 2)
        world.remove_pod("train-0-0")
        world.add_member("train-0-1")
        await asyncio.sleep(5)
        assert world.node_of("train-0-1") == ""
        await asyncio.sleep(60)
        assert world.tested == ["a", "a"]
        assert world.node_of("train-0-1") == "a"

    world.run(story)


@pytest.mark.slow
def test_an_idle_node_is_tested_again_and_its_test_leaves_at_once_for_work() -> None:
    world = World()

    async def story() -> None:
        world.add_node("a")
        await asyncio.sleep(40)
        world.hanging.add("a")
        await asyncio.sleep(3600 + 60)
        (test,) = world.call("GET", PODS)["items"]
        assert test["spec"]["nodeName"] == "a"
        assert world.pending() == set()
        world.add_pod("work")
        await asyncio.sleep(5)
        assert world.node_of("work") == "a"
        assert world.call("GET", PODS)["items"] == []
        assert world.tested == ["a"]

    world.run(story)


@pytest.mark.slow
def test_a_node_that_is_slower_than_its_like_is_said_to_be_and_tested_again_once_more_thoroughly() -> None:
    world = World()
    world.slow.add("n3")

    async def story() -> None:
        for number in range(8):
            world.add_node(f"n{number}")
        await asyncio.sleep(700)
        assert world.pending() == set(), "suspicion takes no trust away"
        events = world.call("GET", "/apis/events.k8s.io/v1/events")["items"]
        (said,) = [event for event in events if event["reason"] == "PreflightOutlier"]
        assert said["regarding"]["name"] == "n3"
        assert "GPU-0 is slower than others of its model: memory_bandwidth_gb_per_s 3000" in said["note"]
        await asyncio.sleep(1500)
        assert sorted(world.tested) == ["n0", "n1", "n2", "n3", "n3", "n4", "n5", "n6", "n7"]
        assert world.records()["n3"]["level"] == 2

    world.run(story)


def test_two_controllers_make_one_test_and_agree() -> None:
    world = World(controllers=2)

    async def story() -> None:
        for number in range(6):
            world.add_node(f"n{number}")
        await asyncio.sleep(60)
        assert sorted(world.tested) == [f"n{number}" for number in range(6)]
        assert world.pending() == set()
        assert len(world.records()) == 6

    world.run(story)


def test_a_record_goes_with_its_node_and_a_new_node_of_the_name_is_tested() -> None:
    world = World()

    async def story() -> None:
        world.add_node("a")
        await asyncio.sleep(40)
        world.call("DELETE", "/api/v1/nodes/a")
        world.add_node("a")
        await asyncio.sleep(5)
        assert world.pending() == {"a"}
        await asyncio.sleep(40)
        assert world.tested == ["a", "a"]
        assert world.pending() == set()

    world.run(story)
