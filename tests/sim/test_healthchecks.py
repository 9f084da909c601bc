"""Issue 11 (simulations): checkers of node health judge a step by what could be known when it was decided."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace

from muster.sim.fuzz.checks import Violated
from muster.sim.fuzz.health.agents import moment
from muster.sim.fuzz.health.facts import RECORD
from muster.sim.fuzz.health.lifechecks import NoHealthyMachineReplaced
from muster.sim.fuzz.health.mishaps import QUARANTINES, REBOOTS, REPLACES
from muster.sim.fuzz.health.nodechecks import NothingWithoutEvidence
from muster.sim.fuzz.health.run import HealthRun
from muster.sim.fuzz.health.scenario import health_scenario
from muster.sim.virtual.loop import VirtualLoop
from muster.sim.virtual.sealed import sealed

NODE, SESSION = "node-00000", "session-of-node-00000"
STATUS = f"/apis/muster.dev/v1alpha1/noderemediations/{SESSION}/status"
LONG_S = 60.0
"""Whatever was stored this long ago is known to every controller."""
T = TypeVar("T")


class Told:
    """A run in which the test writes what agents, tests and remediation would write about one node."""

    def __init__(self, run: HealthRun, loop: VirtualLoop) -> None:
        self._call, self._loop, self._run = run.cluster.call, loop, run
        record = {"metadata": {"name": NODE, "annotations": {RECORD: "{}"}}}
        taint = {"key": "muster.dev/quarantine", "value": "true", "effect": "NoSchedule"}
        self._node: dict[str, Any] = {**record, "spec": {"taints": [taint]}}
        self._steps: list[dict[str, Any]] = []
        self.uid = ""

    def checker(self, kind: type[T]) -> T:
        """Return the run's checker of a kind."""
        return next(each for each in self._run.view.checkers if isinstance(each, kind))

    def finds(self, code: str) -> None:
        """The agent reports a finding, and the node goes out of use."""
        self._call("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
        self.uid = self._call("GET", f"/api/v1/nodes/{NODE}")["metadata"]["uid"]
        now = moment(self._loop.now)
        finding = {"check": "xid", "component": "0000:3b:00", "code": code, "firstTime": now, "lastTime": now}
        self._call("POST", "/apis/muster.dev/v1alpha1/nodehealths", {"metadata": {"name": NODE}})
        status = {"nodeUID": self.uid, "bootID": "", "time": now, "findings": [{**finding, "count": 1}]}
        self._call("PATCH", f"/apis/muster.dev/v1alpha1/nodehealths/{NODE}/status", {"status": status})
        self._call("PATCH", f"/api/v1/nodes/{NODE}", self._node)
        spec = {"node": NODE, "nodeUID": self.uid}
        body = {"metadata": {"name": SESSION}, "spec": spec}
        self._call("POST", "/apis/muster.dev/v1alpha1/noderemediations", body)

    def enters(self, rung: str, reason: str) -> None:
        """The controller writes that the session enters a rung, or what was done on it."""
        time, generation = moment(self._loop.now), len(self._steps) + 1
        self._steps.append({"rung": rung, "time": time, "generation": generation, "reason": reason})
        status = {"phase": "Open", "rung": rung, "generation": generation, "since": time, "history": self._steps}
        self._call("PATCH", STATUS, {"status": status})

    def passes(self) -> None:
        """A test of the node ends now, passes, and is recorded."""
        now = datetime.fromtimestamp(self._loop.now, UTC).isoformat()
        spec = {"nodeUID": self.uid, "bootID": "", "level": 1, "passed": True, "time": now}
        self._call("POST", "/apis/muster.dev/v1alpha1/preflights", {"metadata": {"name": NODE}, "spec": spec})


def tell(story: Callable[[Told], Awaitable[None]], skew_s: float = 0.0) -> None:
    """Run a story where nothing is late but the clock of the controller."""
    scenario = health_scenario(970267)
    weather = replace(scenario.weather, slow=(), partitions={}, unsent=0.0)
    scenario = replace(scenario, weather=weather, skew_s=(skew_s,), replica_faults=(), wounds=(), pleas=())
    loop = VirtualLoop.new()

    async def main() -> None:
        run = HealthRun(scenario, loop)
        run.cluster.start()
        run.view.begin()
        await story(Told(run, loop))

    try:
        with sealed(loop):
            loop.run(main())
    finally:
        loop.wind_up()


async def replaced_after_a_pass(told: Told) -> None:
    told.finds(REPLACES)
    await asyncio.sleep(10.0)
    told.passes()
    told.enters("Quarantine", "xid")
    told.enters("Replace", "xid")
    await asyncio.sleep(LONG_S)
    told.checker(NoHealthyMachineReplaced).replaced(NODE, told.uid)


async def replaced_for_a_lesser_finding(told: Told) -> None:
    told.finds(QUARANTINES)
    told.enters("Quarantine", "xid")
    told.enters("Replace", "xid")
    await asyncio.sleep(LONG_S)
    told.checker(NoHealthyMachineReplaced).replaced(NODE, told.uid)


async def reboot_asked_before_a_pass(told: Told) -> None:
    told.finds(REBOOTS)
    told.enters("Quarantine", "xid")
    told.enters("Reboot", "xid")
    told.enters("Reboot", "boot boot-1")
    await asyncio.sleep(10.0)
    told.passes()
    await asyncio.sleep(LONG_S)
    told.checker(NothingWithoutEvidence).touched(NODE, SESSION, "reboot")


async def reboot_asked_long_after_a_pass(told: Told) -> None:
    told.finds(REBOOTS)
    told.enters("Quarantine", "xid")
    await asyncio.sleep(10.0)
    told.passes()
    told.enters("Reboot", "xid")
    await asyncio.sleep(LONG_S)
    told.enters("Reboot", "boot boot-1")
    told.checker(NothingWithoutEvidence).touched(NODE, SESSION, "reboot")


def test_replacement_is_no_violation_if_a_slow_clock_dates_the_pass_before_the_finding() -> None:
    tell(replaced_after_a_pass, skew_s=-32.0)


def test_replacement_after_a_pass_is_a_violation() -> None:
    with pytest.raises(Violated, match="is replaced, and nothing speaks against it"):
        tell(replaced_after_a_pass)


def test_replacement_for_a_lesser_finding_is_a_violation() -> None:
    with pytest.raises(Violated, match="is replaced, and nothing is wrong with it"):
        tell(replaced_for_a_lesser_finding, skew_s=-32.0)


def test_reboot_asked_for_before_a_pass_is_known_is_no_violation() -> None:
    tell(reboot_asked_before_a_pass)


def test_reboot_asked_for_long_after_a_pass_is_a_violation() -> None:
    with pytest.raises(Violated, match="is told to reboot, and nothing speaks against it"):
        tell(reboot_asked_long_after_a_pass)
