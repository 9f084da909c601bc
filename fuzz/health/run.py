"""Runs a scenario with node health: scheduler, training jobs, remediation and preflight in every replica."""

from __future__ import annotations

import asyncio
import contextlib

from fuzz.checks import NoRoomGivenTwice, Violated
from fuzz.fleet.people import MAPS, put_config
from fuzz.gangchecks import NoGangPartBoundForLong
from fuzz.health.budgetchecks import NeverOverBudgetOrBreaker, NoWriteOfOthersUndone
from fuzz.health.facts import WORKING, HealthFacts, NodeState
from fuzz.health.lifechecks import NoHealthyMachineReplaced, NoLiveNodeTakenForDead
from fuzz.health.mishaps import POLICY, Cut
from fuzz.health.nodechecks import NothingOutWithoutAPass, NothingWithoutEvidence, OneStepForOneRung, PodsMoveOnce
from fuzz.health.people import Helpers
from fuzz.health.scenario import SCALING, VENDOR, HealthScenario
from fuzz.health.trust import TrustView
from fuzz.health.truth import Truth
from fuzz.health.vendor import Vendor
from fuzz.health.ward import Ward
from fuzz.run import CAPACITY, Run
from fuzz.scenario import NodeFault
from fuzz.view import PodFacts
from fuzz.weather import LATEST_S
from muster.api.names import (
    HEALTH_CONFIG_MAP,
    HEALTH_POLICY_KEY,
    LABEL_POOL,
    LABEL_RACK,
    LABEL_TEAM,
    TAINT_POOL,
    TAINT_PREFLIGHT,
)
from muster.fleet.preflight.config import CONFIG_KEY as PREFLIGHT_KEY
from muster.fleet.preflight.config import CONFIG_MAP as PREFLIGHT_MAP
from muster.fleet.preflight.testpod import PREFIX, PRIORITY_CLASS
from muster.fleet.remediation.config import CONFIG_KEY
from muster.fleet.scaling.config import CONFIG_KEY as SCALING_KEY
from muster.fleet.scaling.config import CONFIG_MAP as SCALING_MAP
from muster.kube.errors import NotFound
from muster.manager.controllers import Parts
from muster.sim.virtual.cluster import until
from muster.sim.virtual.loop import VirtualLoop

CLASSES = {"high": 1000, PRIORITY_CLASS: -4}
NODES_PER_RACK = 4
PEERS = 2
"""The number of peers that must report that they cannot reach a node."""
HELD = ("Budget", "Breaker")
"""Limits that hold a session back while its node stays in use."""


class HealthRun(Run):
    """One run. It lasts until every node is in use, waits for a person, or is held for a reported reason."""

    end_s, settle_s, last_words_s, rest_s = 2400.0, 120.0, 75.0, 90.0

    def __init__(self, scenario: HealthScenario, loop: VirtualLoop) -> None:
        self._health = scenario
        if scenario.retests:
            self.rest_s = 0.0  # there is always another test to come
        super().__init__(scenario, loop)

    def _check(self, stale_s: float) -> NoGangPartBoundForLong:
        self.view = self._trust = TrustView(self.cluster.core.store, self._loop.time, self._loop.fail)
        found = super()._check(stale_s)
        self.view.checkers = [each for each in self.view.checkers if type(each) is not NoRoomGivenTwice]
        NoRoomGivenTwiceButForTests(self.view, stale_s)
        self._order.disturbed_until = float("inf")
        for waits in self._waits:
            waits.disturbed_until = float("inf")  # spare nodes are kept for gangs that have run before
        self._facts = facts = HealthFacts(self.cluster.core.store, self._loop.time)
        acted_s = stale_s + LATEST_S
        self._truth = Truth(self.view, acted_s, facts, self._health.dead)
        NeverOverBudgetOrBreaker(self.view, stale_s, facts, self._health)
        spread_s = max(self._health.skew_s) - min(self._health.skew_s)
        slow_s = -min(0.0, *self._health.skew_s)
        self._evidence = NothingWithoutEvidence(self.view, acted_s, facts, self._truth, slow_s)
        self._passes = NothingOutWithoutAPass(self.view, acted_s, facts, spread_s)
        self._steps = OneStepForOneRung(self.view, stale_s, facts)
        self._moves = PodsMoveOnce(self.view, acted_s, facts)
        NoLiveNodeTakenForDead(self.view, acted_s, facts, self._truth)
        self._replaced = NoHealthyMachineReplaced(self.view, acted_s, facts, self._truth, self._evidence, self._moves)
        others = NoWriteOfOthersUndone(self.view, stale_s, facts)
        self.cluster.trace.listeners += [self._moves.saw, others.saw]
        return found

    def _prepare(self) -> None:
        health = self._health
        self._parts = Parts(health=True, preflight=True)
        self._ward = Ward(self.cluster, self.nodes, health.habits, self._acts, self._facts.ended)
        self._truth.ward, self._truth.nodes = self._ward, self.nodes
        self._helpers = Helpers(self.cluster, self._facts, self._ward)
        self._vendor = Vendor(
            self.cluster, self._ward, health.asking, self._fork(), health.habits, self._born, self._replaced.replaced
        )
        self._providers = {VENDOR: self._vendor}

    def _is_off(self, node: str) -> bool:
        machine = self._ward.machines.get(node)
        return machine is not None and (machine.off or machine.hung)

    def _acts(self, node: str, session: str, step: str) -> None:
        """Check a machine before it is reset or rebooted."""
        self._steps.acts(session, step)
        self._evidence.touched(node, session, step)
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
        for number in range(self._health.nodes):
            labels, taints = self._labels(number), self._taints(number)
            if self._health.tainted_at_birth:
                taints.append({"key": TAINT_PREFLIGHT, "value": "pending", "effect": "NoSchedule"})
            await self.nodes.add(1, capacity=CAPACITY, labels=labels, taints=taints)
        for number in sorted(self._health.vendor):
            self._vendor.own(f"node-{number:05d}", number)
        put_config(self.cluster, PREFLIGHT_MAP, PREFLIGHT_KEY, self._health.preflight)
        put_config(self.cluster, SCALING_MAP, SCALING_KEY, SCALING)
        data = {CONFIG_KEY: self._health.remediation, HEALTH_POLICY_KEY: POLICY}
        self.cluster.call("POST", MAPS, {"metadata": {"name": HEALTH_CONFIG_MAP}, "data": data})
        self.view.begin()
        self._begin_mishaps()

    def _begin_mishaps(self) -> None:
        """Have everything happen in its time from now on."""
        network, at = self._ward.agents.network, self._loop.call_at
        for wound in self._health.wounds:
            at(self._start + wound.at, self._ward.strike, wound)
        for plea in self._health.pleas:
            at(self._start + plea.at, self._helpers.ask, plea)
        for cut in self._health.cuts:
            at(self._start + cut.at, network.begin, cut)
            self._faults.append(asyncio.create_task(self._heal(cut)))
        self._looking = asyncio.create_task(self._ward.agents.look_on())

    async def _heal(self, cut: Cut) -> None:
        await until(self._loop, self._start + cut.end)
        await self._ward.agents.network.end(cut)

    def _look_at_rest(self) -> None:
        self._looking.cancel()

    async def _node_fault(self, fault: NodeFault) -> None:
        """As in other runs, where the machine is still the one that it befell."""
        name = f"node-{fault.node:05d}"
        path, machine = f"/api/v1/nodes/{name}", self._ward.machines[name]
        await until(self._loop, self._start + fault.start)
        if not self._ward.agents.uid(name):
            return
        if fault.kind == "cordoned":
            self.cluster.call("PATCH", path, {"spec": {"unschedulable": True}})
            await until(self._loop, self._start + fault.end)
            with contextlib.suppress(NotFound):
                self.cluster.call("PATCH", path, {"spec": {"unschedulable": None}})
            return
        self.nodes.lose(name)
        if fault.kind == "deleted":
            self.cluster.call("DELETE", path)
        await until(self._loop, self._start + fault.end)
        if machine is not self._ward.machines[name] or machine.off:
            return
        if fault.kind == "deleted":
            await self._register_again(name, fault.node)
        await self._ward.back(name, self._ward.machines[name])

    async def _register_again(self, name: str, number: int) -> None:
        self._ward.renewed(name)
        labels, taints = self._labels(number), self._taints(number)
        await self.nodes.register_again(name, capacity=CAPACITY, labels=labels, taints=taints)
        self._vendor.renewed(name)

    async def _make_node_again(self, name: str) -> None:
        """Register a machine again that lived on while its Node object was deleted: it is as it was."""
        if name not in self.nodes.nodes or self._ward.agents.uid(name):
            return
        number = self.nodes.nodes[name].number
        labels, taints = self._labels(number), self._taints(number)
        await self.nodes.register_again(name, capacity=CAPACITY, labels=labels, taints=taints)
        self._put_in_zone(name, number)
        self._vendor.renewed(name)

    async def _born(self, name: str, number: int) -> None:
        """Let a new machine join in place of one that was replaced."""
        if name in self.nodes.nodes:
            await self._register_again(name, number)
            await self.nodes.recover(name)
        else:
            labels, taints = self._labels(number), self._taints(number)
            await self.nodes.join(name, capacity=CAPACITY, labels=labels, taints=taints, ready_after_s=1.0)

    def _labels(self, number: int) -> dict[str, str]:
        health = self._health
        labels = {LABEL_TEAM: health.team_of(number), LABEL_POOL: health.pool_of(number)}
        labels[LABEL_RACK] = f"rack-{number // NODES_PER_RACK}" if health.racks else ""
        labels[VENDOR] = "own" if number in health.vendor else ""
        return {key: value for key, value in labels.items() if value}

    def _taints(self, number: int) -> list[dict[str, str]]:
        pool = self._health.pool_of(number)
        return [{"key": TAINT_POOL, "value": pool, "effect": "NoSchedule"}] if pool else []

    def _waiting(self) -> list[str]:
        """Jobs that are not over, and nodes whose remediation is lost or not over."""
        if self._loop.now < self._health.disturbed_until or self._ward.agents.writing:
            return [*super()._waiting(), "the weather"]
        if self._vendor.busy:
            return [*super()._waiting(), "machines that are replaced"]
        if self._ward.agents.is_old_news_believed() or self._ward.agents.is_settling():
            return [*super()._waiting(), "reports of agents about each other"]
        waits = ((name, self._waits_for(node)) for name, node in sorted(self._facts.nodes.items()))
        tests = sorted(pod.name for pod in self.view.pods.values() if pod.name.startswith(PREFIX) and pod.live)
        return [*super()._waiting(), *tests, *(f"{name} ({why})" for name, why in waits if why)]

    def _waits_for(self, node: NodeState) -> str:
        session, machine = self._facts.session_of(node), self._ward.machines[node.name]
        alive = self._is_up(node.name)
        speaks = self._facts.uncleared(node.uid, self._loop.now)
        if self._facts.is_kept_out(node.uid, 0.0):
            return "" if node.out else "a person wants it out of use"
        if session is not None and session.state == "Open":
            if session.rung in ("Quarantine", *WORKING):
                return f"its session is on {session.rung}: {session.message}"
            if session.held_by not in HELD:
                return f"its session is on {session.rung}, and does not say why: {session.message}"
            if session.held_by == "Breaker" and self._health.window_s < self.end_s:
                return "the breaker will close"
        if node.out and (session is None or session.state == "Released"):
            return "in quarantine, and no session says so"
        if session is None or session.state == "Released":
            if speaks:
                return "no session for what speaks against it"
            if not alive and self._could_be_found_dead(node.name):
                return "it is off, and no controller has noticed"
        if alive and not machine.broken and node.out and not self._failed_last(node):
            return "in quarantine, though nothing is wrong with it any more"
        ladder = session is not None and session.state != "Released"
        if alive and not ladder and not machine.broken and not self._trust.is_trusted(node.name):
            return "not tested"
        return ""

    def _is_up(self, name: str) -> bool:
        machine = self.nodes.nodes.get(name)
        return machine is not None and machine.alive

    def _could_be_found_dead(self, name: str) -> bool:
        """Returns whether enough others watch a machine that is off, and few enough are off with it."""
        down = [each for each in self._facts.nodes if not self._is_up(each)]
        return len(down) <= self._health.dead and len(self._ward.agents.watchers(name)) >= PEERS

    def _failed_last(self, node: NodeState) -> bool:
        """Returns whether its newest test failed or hangs, so that it waits for a person."""
        tests = self._facts.tests[node.uid]
        return bool(tests) and not tests[-1].passed


class NoRoomGivenTwiceButForTests(NoRoomGivenTwice):
    """An untested node is tested though a gang keeps a slot there: it waits for that test."""

    def pod(self, old: PodFacts | None, new: PodFacts | None) -> None:
        """Look where a pod was just bound."""
        if new is not None and not new.name.startswith(PREFIX):
            super().pod(old, new)
