"""Issue 11 (simulations): checkers of node health judge a step by what could be known when it was decided."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from fuzz.checks import Violated
from fuzz.health.agents import SETTLES_S, TURN_S, Agents, moment
from fuzz.health.facts import RECORD
from fuzz.health.lifechecks import NoHealthyMachineReplaced
from fuzz.health.mishaps import QUARANTINES, REBOOTS, REPLACES
from fuzz.health.nodechecks import NothingWithoutEvidence
from fuzz.health.run import HealthRun
from fuzz.health.scenario import health_scenario
from muster.fleet.remediation.evidence.mesh import CONFIG_MAP, KEY
from muster.sim.virtual.loop import VirtualLoop
from muster.sim.virtual.sealed import sealed

NODE, OTHER = "node-00000", "node-00001"
LONG_S = 60.0
"""Whatever was stored this long ago is known to every controller."""
T = TypeVar("T")


class Stage:
    """A run in which the test writes what agents, tests and remediation would write about one node."""

    def __init__(self, run: HealthRun, loop: VirtualLoop, name: str = NODE) -> None:
        self._call, self._loop, self._run, self._name = run.cluster.call, loop, run, name
        self._steps: list[dict[str, Any]] = []
        self.session, self.uid = f"session-of-{name}", ""

    def of(self, name: str) -> Stage:
        """Return the same for another node."""
        return Stage(self._run, self._loop, name)

    def checker(self, kind: type[T]) -> T:
        """Return the run's checker of a kind."""
        return next(each for each in self._run.view.checkers if isinstance(each, kind))

    def finds(self, code: str) -> None:
        """The agent reports a finding, and the node goes out of use."""
        self._call("POST", "/api/v1/nodes", {"metadata": {"name": self._name}})
        self.uid = self._call("GET", f"/api/v1/nodes/{self._name}")["metadata"]["uid"]
        now = moment(self._loop.now)
        finding = {"check": "xid", "component": "0000:3b:00", "code": code, "firstTime": now, "lastTime": now}
        self._call("POST", "/apis/muster.dev/v1alpha1/nodehealths", {"metadata": {"name": self._name}})
        status = {"nodeUID": self.uid, "bootID": "", "time": now, "findings": [{**finding, "count": 1}]}
        self._call("PATCH", f"/apis/muster.dev/v1alpha1/nodehealths/{self._name}/status", {"status": status})
        taint = {"key": "muster.dev/quarantine", "value": "true", "effect": "NoSchedule"}
        record = {"annotations": {RECORD: '{"generation": 1}'}}
        self._call("PATCH", f"/api/v1/nodes/{self._name}", {"metadata": record, "spec": {"taints": [taint]}})
        spec = {"node": self._name, "nodeUID": self.uid}
        body = {"metadata": {"name": self.session}, "spec": spec}
        self._call("POST", "/apis/muster.dev/v1alpha1/noderemediations", body)

    def enters(self, rung: str, event: str = "Entered") -> None:
        """The controller writes that the session enters a rung, or what was done on it."""
        time, generation = moment(self._loop.now), len(self._steps) + 1
        self._steps.append({"rung": rung, "time": time, "generation": generation, "event": event})
        status = {"state": "Open", "rung": rung, "generation": generation, "since": time, "history": self._steps}
        self._call("PATCH", f"/apis/muster.dev/v1alpha1/noderemediations/{self.session}/status", {"status": status})

    def passes(self) -> None:
        """A test of the node ends now, passes, and is recorded."""
        now = datetime.fromtimestamp(self._loop.now, UTC).isoformat()
        spec = {"nodeUID": self.uid, "bootID": "", "level": 1, "passed": True, "time": now}
        self._call("POST", "/apis/muster.dev/v1alpha1/preflights", {"metadata": {"name": self._name}, "spec": spec})

    def is_deleted(self) -> None:
        """A person deletes the node."""
        self._call("DELETE", f"/api/v1/nodes/{self._name}")

    async def peers_change(self) -> None:
        """The controller writes other members of the mesh than before: agents look at other peers then."""
        agents = Agents(self._run.cluster, self._run.nodes, lambda name: False)
        looking = asyncio.create_task(agents.look_on())
        await asyncio.sleep(TURN_S)
        assert not agents.is_settling()
        members = [{"name": NODE, "address": "10.0.0.1", "domains": []}]
        body = {"metadata": {"name": CONFIG_MAP}, "data": {KEY: json.dumps(members)}}
        self._call("POST", "/api/v1/namespaces/default/configmaps", body)
        await asyncio.sleep(TURN_S)
        assert agents.is_settling()
        await asyncio.sleep(SETTLES_S)
        assert not agents.is_settling()
        looking.cancel()


def play(story: Callable[[Stage], Awaitable[None]], skew_s: float = 0.0) -> None:
    """Run a story where nothing is late but the clock of the controller, and the breaker lets one node out of use."""
    scenario = health_scenario(970267)
    weather = replace(scenario.weather, slow=(), partitions={}, unsent=0.0)
    scenario = replace(
        scenario, breaker=1, window_s=3600.0, weather=weather, skew_s=(skew_s,), replica_faults=(), wounds=(), pleas=()
    )
    loop = VirtualLoop.new()

    async def main() -> None:
        run = HealthRun(scenario, loop)
        run.cluster.start()
        run.view.begin()
        await story(Stage(run, loop))

    try:
        with sealed(loop):
            loop.run(main())
    finally:
        loop.wind_up()


async def is_replaced(stage: Stage) -> None:
    stage.enters("Quarantine")
    stage.enters("Replace")
    await asyncio.sleep(LONG_S)
    stage.checker(NoHealthyMachineReplaced).replaced(NODE, stage.uid)


async def replaced_after_a_pass(stage: Stage) -> None:
    stage.finds(REPLACES)
    await asyncio.sleep(10.0)
    stage.passes()
    await is_replaced(stage)


async def replaced_for_a_finding_of_the_second_in_which_a_test_ended(stage: Stage) -> None:
    stage.finds(REPLACES)
    await asyncio.sleep(0.02)
    stage.passes()
    await is_replaced(stage)


async def replaced_for_a_lesser_finding(stage: Stage) -> None:
    stage.finds(QUARANTINES)
    await is_replaced(stage)


async def reboot_asked_before_a_pass(stage: Stage) -> None:
    stage.finds(REBOOTS)
    stage.enters("Quarantine")
    stage.enters("Reboot")
    stage.enters("Reboot", "RebootRequested")
    await asyncio.sleep(10.0)
    stage.passes()
    await asyncio.sleep(LONG_S)
    stage.checker(NothingWithoutEvidence).touched(NODE, stage.session, "reboot")


async def reboot_asked_long_after_a_pass(stage: Stage) -> None:
    stage.finds(REBOOTS)
    stage.enters("Quarantine")
    await asyncio.sleep(10.0)
    stage.passes()
    stage.enters("Reboot")
    await asyncio.sleep(LONG_S)
    stage.enters("Reboot", "RebootRequested")
    stage.checker(NothingWithoutEvidence).touched(NODE, stage.session, "reboot")


async def second_node_out_after_the_first_is_deleted(stage: Stage) -> None:
    stage.finds(REBOOTS)
    await asyncio.sleep(5.0)
    stage.is_deleted()
    stage.of(OTHER).finds(REBOOTS)


async def second_node_out_after_the_first_is_written_and_deleted(stage: Stage) -> None:
    stage.finds(REBOOTS)
    stage.enters("Quarantine")
    await asyncio.sleep(5.0)
    stage.is_deleted()
    stage.of(OTHER).finds(REBOOTS)


async def second_node_out_long_after_a_taint_without_a_session(stage: Stage) -> None:
    stage.finds(REBOOTS)
    await asyncio.sleep(LONG_S)
    stage.is_deleted()
    stage.of(OTHER).finds(REBOOTS)


def test_replacement_is_allowed_if_a_slow_clock_dates_the_pass_before_the_finding() -> None:
    play(replaced_after_a_pass, skew_s=-32.0)


def test_pass_need_not_answer_a_finding_of_the_same_second() -> None:
    play(replaced_for_a_finding_of_the_second_in_which_a_test_ended)


def test_replacement_after_a_pass_is_a_violation() -> None:
    with pytest.raises(Violated, match="is replaced, and nothing speaks against it"):
        play(replaced_after_a_pass)


def test_replacement_for_a_lesser_finding_is_a_violation() -> None:
    with pytest.raises(Violated, match="is replaced, and nothing is wrong with it"):
        play(replaced_for_a_lesser_finding, skew_s=-32.0)


def test_reboot_requested_before_a_pass_is_known_is_allowed() -> None:
    play(reboot_asked_before_a_pass)


def test_reboot_asked_for_long_after_a_pass_is_a_violation() -> None:
    with pytest.raises(Violated, match="is ordered to reboot, and nothing speaks against it"):
        play(reboot_asked_long_after_a_pass)


def test_breaker_need_not_count_a_node_deleted_before_its_session_is_written() -> None:
    play(second_node_out_after_the_first_is_deleted)


@pytest.mark.parametrize(
    "story",
    [second_node_out_after_the_first_is_written_and_deleted, second_node_out_long_after_a_taint_without_a_session],
)
def test_breaker_counts_deleted_nodes(story: Callable[[Stage], Awaitable[None]]) -> None:
    with pytest.raises(Violated, match="node-00001: 2 nodes of its pool within"):
        play(story)


def test_mesh_is_not_at_rest_just_after_its_members_changed() -> None:
    play(Stage.peers_change)
