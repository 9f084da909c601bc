"""Carries a scenario with node health: scheduler, training jobs, remediation and preflight in every replica."""

from __future__ import annotations

from muster.api.names import HEALTH_CONFIG_MAP, HEALTH_POLICY_KEY, LABEL_TEAM, TAINT_PREFLIGHT
from muster.fleet.preflight.config import CONFIG_KEY as PREFLIGHT_KEY
from muster.fleet.preflight.config import CONFIG_MAP as PREFLIGHT_MAP
from muster.fleet.preflight.testpod import PREFIX, PRIORITY_CLASS
from muster.fleet.remediation.config import CONFIG_KEY
from muster.manager.works import Parts
from muster.sim.fuzz.checks import NoRoomGivenTwice, Violated
from muster.sim.fuzz.fleet.people import MAPS, put_config
from muster.sim.fuzz.gangchecks import NoGangPartBoundForLong
from muster.sim.fuzz.health.budgetchecks import NeverOverBudgetOrBreaker, NoWriteOfOthersUndone
from muster.sim.fuzz.health.facts import WORKING, HealthFacts, NodeState
from muster.sim.fuzz.health.nodechecks import (
    NobodyLeavesInVain,
    NothingOutWithoutAPass,
    NothingWithoutEvidence,
    OneStepForOneRung,
)
from muster.sim.fuzz.health.scenario import POLICY, PREFLIGHT, HealthScenario, team_of
from muster.sim.fuzz.health.trust import TrustView
from muster.sim.fuzz.health.ward import Ward
from muster.sim.fuzz.run import CAPACITY, Run
from muster.sim.fuzz.view import PodFacts
from muster.sim.fuzz.weather import LATEST_S
from muster.sim.virtual.loop import VirtualLoop

CLASSES = {"high": 1000, PRIORITY_CLASS: -4}
HELD = ("no more than", "at once", "the breaker")
"""What a session says whose node a budget or breaker leaves in use."""


class HealthRun(Run):
    """One run. It lasts until every node is in use, or a person's, or held for a reason that is said."""

    end_s, settle_s, last_words_s, rest_s = 2400.0, 120.0, 60.0, 90.0

    def __init__(self, scenario: HealthScenario, loop: VirtualLoop) -> None:
        self._health = scenario
        super().__init__(scenario, loop)

    def _check(self, stale_s: float) -> NoGangPartBoundForLong:
        self.view = self._trust = TrustView(self.cluster.core.store, self._loop.time, self._loop.fail)
        found = super()._check(stale_s)
        self.view.checkers = [each for each in self.view.checkers if type(each) is not NoRoomGivenTwice]
        NoRoomGivenTwiceButForTests(self.view, stale_s)
        self._order.disturbed_until = float("inf")  # spare nodes are kept for gangs that have run before
        self._facts = facts = HealthFacts(self.cluster.core.store, self._loop.time)
        acted_s = stale_s + LATEST_S
        NeverOverBudgetOrBreaker(self.view, stale_s, facts, self._health)
        self._evidence = NothingWithoutEvidence(self.view, acted_s, facts)
        self._passes = NothingOutWithoutAPass(self.view, acted_s, facts)
        self._steps = OneStepForOneRung(self.view, stale_s, facts)
        self._moves = NobodyLeavesInVain(self.view, acted_s, facts)
        others = NoWriteOfOthersUndone(self.view, stale_s, facts)
        self.cluster.trace.listeners += [self._moves.saw, others.saw]
        return found

    def _prepare(self) -> None:
        self._parts = Parts(health=True, preflight=True)
        self._ward = Ward(self.cluster, self.nodes, self._health.habits, self._acts)

    def _acts(self, node: str, session: str, step: str) -> None:
        """A machine is about to be reset or rebooted."""
        self._steps.acts(session, step)
        self._evidence.touched(node, step)
        state = self._facts.nodes[node]
        if step == "reset":
            self._passes.repaired[state.uid] = self._loop.now
        for pod in self.view.on_node[node].values():
            if pod.gang and pod.live and self._moves.bound_before(pod, self._loop.now - self._moves.stale_s):
                self._loop.fail(Violated(f"no machine touched under work: {step} of {node}, on which {pod.name} runs"))

    async def _furnish(self) -> None:
        for name, value in CLASSES.items():
            body = {"metadata": {"name": name}, "value": value}
            self.cluster.call("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", body)
        taints = [{"key": TAINT_PREFLIGHT, "value": "pending", "effect": "NoSchedule"}]
        for number in range(self._health.nodes):
            born = taints if self._health.tainted_at_birth else []
            await self.nodes.add(1, capacity=CAPACITY, labels=_labels(number), taints=born)
        put_config(self.cluster, PREFLIGHT_MAP, PREFLIGHT_KEY, PREFLIGHT)
        data = {CONFIG_KEY: self._health.remediation, HEALTH_POLICY_KEY: POLICY}
        self.cluster.call("POST", MAPS, {"metadata": {"name": HEALTH_CONFIG_MAP}, "data": data})
        self.view.begin()
        for wound in self._health.wounds:
            self._loop.call_at(self._start + wound.at, self._ward.strike, wound)

    async def _register_again(self, name: str, number: int) -> None:
        self._ward.renewed(name)
        await self.nodes.register_again(name, capacity=CAPACITY, labels=_labels(number))

    def _waiting(self) -> list[str]:
        """Jobs that are not over, and nodes whose remediation is lost or not over."""
        if self._loop.now < self._health.disturbed_until or self._ward.writing:
            return [*super()._waiting(), "the weather"]
        waits = ((name, self._waits_for(node)) for name, node in sorted(self._facts.nodes.items()))
        tests = sorted(pod.name for pod in self.view.pods.values() if pod.name.startswith(PREFIX) and pod.live)
        return [*super()._waiting(), *tests, *(f"{name} ({why})" for name, why in waits if why)]

    def _waits_for(self, node: NodeState) -> str:
        session, machine = self._facts.session_of(node), self._ward.machines[node.name]
        alive = self.nodes.nodes[node.name].alive
        speaks = self._facts.uncleared(node.uid, self._loop.now)
        if session is not None and session.phase == "Open":
            if session.rung in ("Quarantine", *WORKING):
                return f"its session is on {session.rung}: {session.message}"
            if not any(word in session.message for word in HELD):
                return f"its session is on {session.rung}, and does not say why: {session.message}"
            if "the breaker" in session.message and self._health.window_s < self.end_s:
                return "the breaker will close"
        if node.out and (session is None or session.phase == "Released"):
            return "in quarantine, and no session says so"
        if speaks and (session is None or session.phase == "Released"):
            return "no session for what speaks against it"
        if alive and not machine.broken and node.out and not self._failed_last(node):
            return "in quarantine, though nothing is wrong with it any more"
        ladder = session is not None and session.phase != "Released"
        if alive and not ladder and not machine.broken and not self._trust.is_trusted(node.name):
            return "not tested"
        return ""

    def _failed_last(self, node: NodeState) -> bool:
        """Whether its newest test says that it is broken, which a test that hangs does: it is a person's then."""
        tests = self._facts.tests[node.uid]
        return bool(tests) and not tests[-1].passed


class NoRoomGivenTwiceButForTests(NoRoomGivenTwice):
    """An untested node is tested though a gang keeps a slot there: it waits for that test."""

    def pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """Look where a pod was just bound."""
        if new is not None and not new.name.startswith(PREFIX):
            super().pod(old, new)


def _labels(number: int) -> dict[str, str]:
    team = team_of(number)
    return {LABEL_TEAM: team} if team else {}
