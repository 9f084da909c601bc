"""The controller of joins in virtual time: the bound holds at every moment, and at rest nothing is written."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from muster.api.names import TAINT_JOINING
from muster.embedded.apiserver.request import Request
from muster.fleet.joins.config import CONFIG_KEY, CONFIG_MAP
from muster.fleet.joins.controller import JoinController
from muster.fleet.joins.pace import Verdict
from muster.fleet.joins.record import ANNOTATION_JOIN_PACE, ANNOTATION_JOIN_RECORD
from muster.kube.errors import Unavailable
from muster.sim import nodeobjects
from muster.sim.virtual.cluster import VirtualCluster
from muster.sim.virtual.loop import VirtualLoop

PERIOD_S = 5.0
TAINT = {"key": TAINT_JOINING, "value": "pending", "effect": "NoSchedule"}
FOREIGN = {"key": "example.com/owner", "value": "another", "effect": "NoSchedule"}
NAMESPACE = "muster-system"
MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"


class World:
    """A cluster, the controller, and what its API server says of its load."""

    def __init__(self, config: str | None = "") -> None:
        self.loop = VirtualLoop.new()
        self.cluster = VirtualCluster(self.loop, random.Random(7))
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        if config is not None:
            self.call("POST", MAPS, {"metadata": {"name": CONFIG_MAP}, "data": {CONFIG_KEY: config}})
        self.answered = self.refused = 0
        self.silent = False
        self.refuse_each_period = 0
        self.opened_at: list[float] = []
        self.cluster.trace.listeners.append(self.heard)
        self.controller = JoinController(
            self.cluster.client("controller"),
            NAMESPACE,
            clock=lambda: self.loop.now,
            scrape=self.scrape,
            rng=random.Random(1),
            registry=CollectorRegistry(),
        )

    def heard(self, now: float, client: str, request: Request, code: int, body: bytes) -> None:
        if client == "controller" and request.method == "PATCH" and "/nodes/" in request.path and code == 200:
            self.opened_at.append(now)

    async def scrape(self) -> str:
        if self.silent:
            raise Unavailable(503, "ServiceUnavailable", "too much to do")
        self.answered += 1000
        self.refused += self.refuse_each_period
        return (
            f'apiserver_request_total{{code="200",verb="GET"}} {self.answered}\n'
            f'apiserver_request_total{{code="429",verb="POST"}} {self.refused}\n'
            f"apiserver_current_inflight_requests 10\n"
        )

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        return self.cluster.call(method, path, body)

    def add_node(self, name: str, *taints: dict[str, str], ready: bool = True, **labels: str) -> None:
        made = nodeobjects.node(name, "10.0.0.1", 1, {"cpu": "1"}, labels, self.date, taints)
        if not ready:
            made["status"]["conditions"] = nodeobjects.conditions(self.date, ready="False")
        self.call("POST", "/api/v1/nodes", made)

    @property
    def date(self) -> datetime:
        return datetime.fromtimestamp(self.loop.now, UTC)

    def nodes(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.call("GET", "/api/v1/nodes")["items"]
        return items

    def held(self) -> set[str]:
        return {
            node["metadata"]["name"]
            for node in self.nodes()
            if any(taint["key"] == TAINT_JOINING for taint in node["spec"].get("taints", ()))
        }

    def version(self) -> int:
        return int(self.call("GET", "/api/v1/nodes")["metadata"]["resourceVersion"])

    def run(self, story: Callable[[], Any]) -> None:
        async def main() -> None:
            task = asyncio.create_task(self.controller.run())
            await story()
            assert not task.done(), task.exception()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        try:
            self.loop.run(main())
        finally:
            self.loop.wind_up()

    async def opened(self, count: int, within_s: float) -> list[float]:
        """Wait until so many nodes have been opened since the beginning; when each was."""
        for _ in range(int(within_s)):
            await asyncio.sleep(1)
            if len(self.opened_at) == count:
                break
        assert len(self.opened_at) == count
        assert self.held() == set()
        return self.opened_at


def most_within(times: list[float], period_s: float) -> int:
    """The most of these moments in any stretch of time shorter than a period."""
    return max(sum(start <= time < start + period_s for time in times) for start in times)


@pytest.mark.slow
def test_in_no_stretch_of_time_as_long_as_a_period_more_nodes_are_opened_than_the_bound() -> None:
    world = World("maxNodes: 12\n")

    async def story() -> None:
        for number in range(200):
            world.add_node(f"n{number:03}", TAINT)
        times = await world.opened(200, 600)
        assert most_within(times, PERIOD_S) == 12, "it gets there, and not beyond"
        first = times[0]
        assert sum(time < first + PERIOD_S for time in times) == 5, "startNodes"

    world.run(story)


def test_nothing_is_written_once_all_have_joined() -> None:
    world = World()

    async def story() -> None:
        for number in range(30):
            world.add_node(f"n{number:02}", TAINT)
        await world.opened(30, 120)
        await asyncio.sleep(60)
        before = world.version()
        await asyncio.sleep(7200)
        assert world.version() == before
        shown = world.call("GET", f"{MAPS}/{CONFIG_MAP}")["metadata"]["annotations"][ANNOTATION_JOIN_PACE]
        assert json.loads(shown)["waiting"] == 0

    world.run(story)


def test_reports_of_the_previous_leader_about_waiting_nodes_are_removed() -> None:
    world = World()
    said = {"nodes": 1, "periodSeconds": PERIOD_S, "verdict": "Overloaded", "why": "", "waiting": 3}
    note = {"metadata": {"annotations": {ANNOTATION_JOIN_PACE: json.dumps(said)}}}
    world.call("PATCH", f"{MAPS}/{CONFIG_MAP}", note)

    async def story() -> None:
        await asyncio.sleep(60)
        shown = world.call("GET", f"{MAPS}/{CONFIG_MAP}")["metadata"]["annotations"][ANNOTATION_JOIN_PACE]
        assert json.loads(shown)["waiting"] == 0

    world.run(story)


def test_the_pace_falls_to_one_node_a_period_and_not_to_nothing_while_requests_are_refused() -> None:
    world = World()
    world.refuse_each_period = 30

    async def story() -> None:
        for number in range(30):
            world.add_node(f"n{number:02}", TAINT)
        times = await world.opened(30, 30 * PERIOD_S + 60)
        assert most_within(times[10:], PERIOD_S) == 1
        assert world.controller.pace.verdict is Verdict.OVERLOADED
        assert world.controller.coming_max < 10
        assert slowed(world) == ["2 nodes in 5 s: the API server refused 30 of 1030 requests"]
        world.refuse_each_period = 0
        await asyncio.sleep(600)
        assert world.controller.coming_max >= 10

    world.run(story)


def test_each_cause_of_an_overload_gets_an_event() -> None:
    """Issue 11.33: where the API server did not answer first, the Event that it refuses requests was never written."""
    world = World()

    async def story() -> None:
        for number in range(60):
            world.add_node(f"n{number:02}", TAINT)
        await asyncio.sleep(2.5 * PERIOD_S)
        world.silent = True
        await asyncio.sleep(3 * PERIOD_S)
        world.silent, world.refuse_each_period = False, 30
        await asyncio.sleep(10 * PERIOD_S)
        assert [cause for cause in slowed(world) if "refused 30" in cause] != []
        assert [cause for cause in slowed(world) if "does not say how it is" in cause] != []
        assert len(slowed(world)) == 2
        shown = json.loads(world.call("GET", f"{MAPS}/{CONFIG_MAP}")["metadata"]["annotations"][ANNOTATION_JOIN_PACE])
        assert shown["cause"] == "RequestsRefused"

    world.run(story)


def slowed(world: World) -> list[str]:
    events = world.call("GET", f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    return [event["message"] for event in events if event["reason"] == "JoinsSlowed"]


def test_an_api_server_that_does_not_say_how_it_is_has_too_much_to_do() -> None:
    world = World()
    world.silent = True

    async def story() -> None:
        for number in range(8):
            world.add_node(f"n{number}", TAINT)
        await world.opened(8, 120)
        assert world.controller.pace.allowance == 1

    world.run(story)


def test_a_node_is_held_back_before_it_is_ready_and_opened_when_it_is() -> None:
    world = World("nodeSelector: {pool: h100}\n")

    async def story() -> None:
        await asyncio.sleep(20)
        world.add_node("new", FOREIGN, ready=False, pool="h100")
        world.add_node("other", ready=False, pool="cpu")
        world.add_node("ready", pool="h100")
        await asyncio.sleep(20)
        assert world.held() == {"new"}
        status = {"status": {"conditions": nodeobjects.conditions(world.date)}}
        world.call("PATCH", "/api/v1/nodes/new/status", status)
        await asyncio.sleep(20)
        (node,) = (node for node in world.nodes() if node["metadata"]["name"] == "new")
        assert FOREIGN in node["spec"]["taints"]
        assert world.held() == set()
        assert json.loads(node["metadata"]["annotations"][ANNOTATION_JOIN_RECORD]).keys() == {"since", "opened", "why"}
        unready = {"status": {"conditions": nodeobjects.conditions(world.date, ready="False")}}
        world.call("PATCH", "/api/v1/nodes/new/status", unready)
        await asyncio.sleep(20)
        assert world.held() == set(), "it has joined; that it is unwell now is another user's"

    world.run(story)


def test_without_a_configuration_no_node_is_held_back_and_none_stays_held() -> None:
    world = World(None)

    async def story() -> None:
        world.add_node("tainted", TAINT)
        world.add_node("new", ready=False)
        await asyncio.sleep(30)
        assert world.held() == set()

    world.run(story)


def test_a_configuration_that_is_wrong_is_said_once_and_the_one_before_holds() -> None:
    world = World("startNodes: 2\nmaxNodes: 2\n")

    async def story() -> None:
        await asyncio.sleep(10)
        for _ in range(2):
            world.call("PATCH", f"{MAPS}/{CONFIG_MAP}", {"data": {CONFIG_KEY: "startNodes: none\n"}})
            await asyncio.sleep(10)
        for number in range(20):
            world.add_node(f"n{number:02}", TAINT)
        assert most_within(await world.opened(20, 120), PERIOD_S) == 2
        events = world.call("GET", f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
        (said,) = (event for event in events if event["reason"] == "BadConfig")
        assert "line 1: startNodes: Expected `int`, got `str`" in said["message"]

    world.run(story)
