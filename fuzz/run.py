"""Carries a scenario out and reports its outcome."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from fuzz import changes
from fuzz.accidents import Accidents
from fuzz.backfillchecks import (
    BackfilledOnlyBehind,
    BackfilledOnlyIfAllowed,
    NothingLostWhenAsked,
    NoTradingPlaces,
    was_asked,
)
from fuzz.checks import (
    Checker,
    NoNodeOverCapacity,
    NoRoomGivenTwice,
    NothingBesideWhatItKeepsApartFrom,
    NothingWhereItDoesNotFit,
    PatientChecker,
    Violated,
)
from fuzz.demand import POOL_TAINT
from fuzz.errors import no_unexpected_errors
from fuzz.gangchecks import BoundWhereItsSlotIs, NoGangPartBoundForLong, NoSlotLost
from fuzz.jobchecks import AttemptsEndOnce, NoChargeForWhatTheUserDidNot, NoJobFails, RecordStays, SucceededMeansDone
from fuzz.orderchecks import NoGangPassedOver, NoWritesAtRest, NoWriteWithoutPrecondition
from fuzz.rankchecks import NoRankInAPartBoundGang
from fuzz.ranks import Ranks
from fuzz.replica import BIND_DEADLINE_S, HOLD_S, LEASE_NAMESPACE, SCHEDULER_ONLY, SETTINGS, Replica
from fuzz.restorechecks import TrainsFromOneGoodCheckpoint
from fuzz.roads import RoadWeather, WeatheredRoads
from fuzz.scenario import NodeFault, ReplicaFault, Scenario
from fuzz.shapes import LABEL_ZONE, kind_of, zone
from fuzz.training import Training
from fuzz.view import PlacementFacts, View
from fuzz.waitchecks import NoReservedGangDelayed, NothingIdleWhileRestartableWaits
from fuzz.weather import LATEST_S, Weathered
from fuzz.workload import GPU, Owner
from muster.api.names import CONTROLLER_LEASE
from muster.embedded.apiserver.request import Request
from muster.embedded.objects import section
from muster.fleet.providers.base import Provider
from muster.kube.client import Client
from muster.kube.objects.workloads import CoschedulingPodGroup
from muster.scheduler.config import CONFIG_KEY, CONFIG_MAP
from muster.sim.nodes import EmptyRuntime, SimNodes
from muster.sim.virtual.cluster import VirtualCluster, until
from muster.sim.virtual.line import Lines
from muster.sim.virtual.loop import VirtualLoop
from muster.sim.virtual.sealed import sealed

Saw = Callable[[float, str, Request, int, bytes], None]
END_S = 1200.0
"""All jobs must be over by then."""
TAKEOVER_S = 45.0
"""A lease ends after 15 s, requests of its holder are waited out for 10 s more; then releasing takes a moment."""
STOP_RANKS_S = 240.0
"""A new leader waits 45 s for all supervisors to report; if more than half of them are silent, 120 s more."""
SETTLE_S = 30.0
LAST_WORDS_S = 75.0
"""The last reports about the last job are written by then: the RunHistory, at most once a minute."""
REST_S = 30.0
BROKEN, CRASHED = "the run itself", "no controller ends by itself"
CONFIG_MAPS = f"/api/v1/namespaces/{LEASE_NAMESPACE}/configmaps"
CAPACITY = {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: "8"}


class Outcome(msgspec.Struct, frozen=True):
    """The outcome of a run.

    Attributes:
        seed: of the scenario.
        violation: the invariant that did not hold and how; "" if all did.
        digest: hash of the trace.
        requests: seen by the API server.
        steps: callbacks run.
        virtual_s: how long it took, in virtual time.
    """

    seed: int
    violation: str
    digest: str
    requests: int
    steps: int
    virtual_s: float


def run(
    scenario: Scenario,
    saw: Saw | None = None,
    kind: Callable[[Any, VirtualLoop], Run] | None = None,
) -> Outcome:
    """Run a scenario from start to end, sealed off from the outer world.

    Args:
        scenario: what happens.
        saw: called with each request.
        kind: of run, for scenarios that are not the scheduler's.
    """
    loop = VirtualLoop.new()
    start = loop.now
    violation = ""
    with no_unexpected_errors(loop.fail), sealed(loop):
        run_ = (kind or Run)(scenario, loop)
        if saw is not None:
            run_.cluster.trace.listeners.append(saw)
        try:
            loop.run(run_.main())
        except Violated as error:
            violation = str(error)
        except Exception as error:
            violation = f"{BROKEN}: {type(error).__name__}: {error}"
        loop.wind_up()
    trace = run_.cluster.trace
    return Outcome(scenario.seed, violation, trace.digest, trace.requests, loop.steps, loop.now - start)


class Run:
    """One run; what else than the scheduler's may be in a run overrides the parts.

    Attributes:
        end_s: all jobs must be over by then.
        settle_s: after the last disturbance all is at rest by then.
        last_words_s: all that follows from the end of the last job has happened by then.
        rest_s: nothing is written for so long.
    """

    end_s, settle_s, last_words_s, rest_s = END_S, TAKEOVER_S + SETTLE_S, LAST_WORDS_S, REST_S

    def __init__(self, scenario: Scenario, loop: VirtualLoop) -> None:
        self._scenario = scenario
        self._loop = loop
        self._start = loop.now
        self._rng = random.Random(f"run {scenario.seed}")
        self.cluster = self._make_cluster()
        self.view = View(self.cluster.core.store, loop.time, loop.fail)
        self._faults: list[asyncio.Task[None]] = []
        self._partbound = self._check(scenario.stale_s)
        NoWriteWithoutPrecondition(self.view, self.cluster.trace)
        self._rest = NoWritesAtRest(self.view, self.cluster.trace)
        self._lines: Lines | None = None
        self._training: Training | None = None
        self._parts = SCHEDULER_ONLY
        self._providers: Mapping[str, Provider] | None = None
        self._together: NoRankInAPartBoundGang | None = None
        kubelets = self.cluster.client("kubelets")
        self.nodes = SimNodes(
            kubelets,
            runtime=self._train(scenario.roads, kubelets) if scenario.roads is not None else EmptyRuntime(),
            now=lambda: datetime.fromtimestamp(loop.now, UTC),
            start_s=scenario.start_s,
            stop_s=scenario.stop_s,
            prefix="node",
        )
        self._prepare()
        modelled = [job for job in scenario.jobs if job.single or scenario.roads is None]
        self.owner = Owner(self.cluster, modelled, self._is_off)
        self.replicas = [self._replica(number) for number in range(scenario.replicas)]

    def _make_cluster(self) -> VirtualCluster:
        return VirtualCluster(self._loop, self._fork())

    def _prepare(self) -> None:
        """Make what controllers are given beside the API server."""

    def _is_off(self, node: str) -> bool:
        """Returns whether a node's machine is off for good."""
        return False

    def _check(self, stale_s: float) -> NoGangPartBoundForLong:
        view = self.view
        acted_s = stale_s + LATEST_S * bool(self._scenario.weather.late)  # what was known when a write was sent
        NoNodeOverCapacity(view, stale_s)
        NothingWhereItDoesNotFit(view, acted_s)
        NothingBesideWhatItKeepsApartFrom(view, stale_s)
        NoRoomGivenTwice(view, stale_s)
        BoundWhereItsSlotIs(view, stale_s)
        NoSlotLost(view, self.cluster.trace, acted_s, HOLD_S)
        self._check_backfill(acted_s)
        self._order = NoGangPassedOver(view, stale_s, stale_s + LATEST_S)
        return NoGangPartBoundForLong(view, stale_s, BIND_DEADLINE_S + TAKEOVER_S, self._scenario.disturbed_until)

    def _check_backfill(self, acted_s: float) -> None:
        view, trace, drawn, until = self.view, self.cluster.trace, self._scenario, self._scenario.disturbed_until
        grace_s = max((job.grace_s for job in drawn.jobs), default=0)
        BackfilledOnlyBehind(view, acted_s)
        BackfilledOnlyIfAllowed(view, acted_s, drawn.backfill)
        NoTradingPlaces(view, acted_s)
        delays = NoReservedGangDelayed(view, trace, acted_s, drawn.backfill, until, grace_s)
        idle = NothingIdleWhileRestartableWaits(view, trace, acted_s, drawn.backfill, until, delays)
        self._waits: list[PatientChecker] = [delays, idle]
        KillAfterAsk(view, acted_s, self._asked)

    def _train(self, roads: RoadWeather, kubelets: Client) -> Ranks:
        """Have supervisors in pods of training jobs, which the controller carries."""
        scenario = self._scenario
        self._lines = Lines(self._loop, WeatheredRoads(self._loop, roads, self._fork()), self._fork())
        jobs = [job for job in scenario.jobs if not job.single]
        seed = self._fork().getrandbits(32)
        ranks = Ranks(kubelets, self._lines, stop_s=scenario.stop_s, jobs={job.key: job for job in jobs}, seed=seed)
        self._training = Training(self.cluster, ranks, jobs)
        AttemptsEndOnce(self.view, scenario.stale_s)
        NoChargeForWhatTheUserDidNot(self.view, scenario.stale_s, self._training.failed)
        NoJobFails(self.view, scenario.stale_s)
        SucceededMeansDone(self.view, scenario.stale_s, ranks)
        RecordStays(self.view, scenario.stale_s, ranks)
        TrainsFromOneGoodCheckpoint(self.view, scenario.stale_s, ranks)
        lost = NothingLostWhenAsked(
            self.view, scenario.stale_s, ranks, {job.name: job for job in jobs}, scenario.disturbed_until
        )
        self._waits.append(lost)
        self._together = NoRankInAPartBoundGang(
            self.view, scenario.stale_s, ranks, STOP_RANKS_S, scenario.disturbed_until
        )
        return ranks

    def _fork(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))

    def _replica(self, number: int) -> Replica:
        name = f"controller-{number}"
        fates = Weathered(self._loop, self._scenario.weather, name, self._fork())
        scenario = self._scenario
        return Replica(
            self.cluster,
            name,
            fates,
            self._fork(),
            skew_s=scenario.skew_s[number],
            lease_s=scenario.lease_s,
            failed=self._crashed,
            lines=self._lines,
            parts=self._parts,
            providers=self._providers,
            settings=scenario.backfill.applied_to(SETTINGS),
        )

    def _crashed(self, error: BaseException) -> None:
        self._loop.fail(Violated(f"{CRASHED}: {error!r}"))

    async def main(self) -> None:
        """Everything from start to end. Raises Violated."""
        self.cluster.start()
        async with self.nodes:
            if self._scenario.backfill.configured:
                data = {CONFIG_KEY: self._scenario.backfill.text}
                self.cluster.call("POST", CONFIG_MAPS, {"metadata": {"name": CONFIG_MAP}, "data": data})
            await self._furnish()
            for number, replica in enumerate(self.replicas):
                self._loop.call_later(number * 0.1, replica.start)
            for fault in self._scenario.node_faults:
                self._faults.append(asyncio.create_task(self._node_fault(fault)))
            self._begin_accidents()
            self._begin_changes()
            for one in self._scenario.replica_faults:
                self._loop.call_at(self._start + one.at, self._replica_fault, one)
            await self.owner.run()
            self._begin_training()
            while waiting := self._waiting():
                if self._loop.now > self._start + self.end_s:
                    raise Violated(f"no starvation: {', '.join(waiting)} not over after {self.end_s:g} s")
                await self._second()
            for task in self._faults:
                await task
            said = self._loop.now + self.last_words_s
            # looked at again each second: in quiet times a fault's step may come as late as now
            while self._loop.now < max(self._partbound.disturbed_until + self.settle_s, said):
                await self._second()
            for replica in self.replicas:
                if replica.process is not None:
                    replica.process.stop_step = None  # a fault whose step has not come would disturb the rest
            self._rest.resting = True
            await asyncio.sleep(self.rest_s)
            self._look_at_rest()

    def _look_at_rest(self) -> None:
        """See whether all is as it should be in the end."""

    def _begin_training(self) -> None:
        if self._training is None or self._lines is None or self._scenario.roads is None:
            return
        self._training.begin()
        for node, window in self._scenario.roads.dark.items():
            self._loop.call_at(window.start, self._lines.dark, node, window.end)

    def _begin_accidents(self) -> None:
        if self._training is None:
            return
        accidents = Accidents(
            self.cluster, self.nodes, self.view, self._training, self._is_spared, self._make_node_again
        )
        for accident in self._scenario.accidents:
            self._faults.append(asyncio.create_task(accidents.happens(accident)))

    def _begin_changes(self) -> None:
        specs = {job.name: job for job in self._scenario.jobs}
        for change in self._scenario.backfill.changes:
            happens = changes.happens(change, specs[change.job], self.owner, self._training, list(self.nodes.nodes))
            self._faults.append(asyncio.create_task(happens))

    def _asked(self, nth: int) -> None:
        """A gang was asked to leave backfilled nodes: the leader may be killed soon after that."""
        lease = self.view.object("leases.coordination.k8s.io", LEASE_NAMESPACE, CONTROLLER_LEASE)
        holder = str(section(lease or {}, "spec").get("holderIdentity", "")).partition(".")[0]
        for fault in self._scenario.backfill.faults:
            for number, replica in enumerate(self.replicas):
                if fault.nth == nth and replica.name == holder:
                    self._replica_fault(ReplicaFault("kill", number, 0.0, fault.steps, fault.back_s))

    def _is_spared(self, node: str) -> bool:
        """Returns whether people leave a node alone because it has other faults."""
        return any(self.nodes.nodes[node].number == fault.node for fault in self._scenario.node_faults)

    def _waiting(self) -> list[str]:
        """Jobs that are not over."""
        return [*self.owner.unfinished, *(self._training.unfinished if self._training is not None else ())]

    async def _second(self) -> None:
        await asyncio.sleep(1.0)
        for checker in self.view.checkers:
            checker.second()

    async def _furnish(self) -> None:
        self.cluster.call(
            "POST",
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {
                "apiVersion": "scheduling.k8s.io/v1",
                "kind": "PriorityClass",
                "metadata": {"name": "high"},
                "value": 1000,
            },
        )
        await self.nodes.add(self._scenario.nodes, capacity=CAPACITY)
        for name in list(self.nodes.nodes)[: self._scenario.tainted]:
            self._taint(name)
        if self._scenario.trained:
            for number, name in enumerate(self.nodes.nodes):
                self._put_in_zone(name, number)
        if self._scenario.shaped:
            self.cluster.call(
                "POST",
                "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                kind_of(CoschedulingPodGroup.RESOURCE),
            )
            for number, name in enumerate(self.nodes.nodes):
                self._put_in_zone(name, number)
        self.view.begin()

    def _taint(self, name: str) -> None:
        taint = {"key": POOL_TAINT, "value": "x", "effect": "NoSchedule"}
        found = self.cluster.call("GET", f"/api/v1/nodes/{name}")
        taints = [*found["spec"].get("taints", []), taint]
        self.cluster.call("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": taints}})

    def _put_in_zone(self, name: str, number: int) -> None:
        self.cluster.call("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": {LABEL_ZONE: zone(number)}}})

    async def _node_fault(self, fault: NodeFault) -> None:
        name = list(self.nodes.nodes)[fault.node]
        path = f"/api/v1/nodes/{name}"
        await until(self._loop, self._start + fault.start)
        if fault.kind == "cordoned":
            self.cluster.call("PATCH", path, {"spec": {"unschedulable": True}})
            await until(self._loop, self._start + fault.end)
            self.cluster.call("PATCH", path, {"spec": {"unschedulable": None}})
            return
        if fault.kind == "unready":
            await self.nodes.report_ready(name, ready=False)
            await until(self._loop, self._start + fault.end)
            await self.nodes.report_ready(name, ready=True)
            return
        self.nodes.lose(name)
        if fault.kind == "deleted":
            self.cluster.call("DELETE", path)
        await until(self._loop, self._start + fault.end)
        if fault.kind == "deleted":
            await self._make_node_again(name)
        await self.nodes.recover(name)

    async def _make_node_again(self, name: str) -> None:
        """Register a machine whose Node object was deleted, with the taints and labels that it had at first."""
        number = self.nodes.nodes[name].number
        await self._register_again(name, number)
        if number < self._scenario.tainted:
            self._taint(name)
        if self._scenario.shaped or self._scenario.trained:
            self._put_in_zone(name, number)

    async def _register_again(self, name: str, number: int) -> None:
        await self.nodes.register_again(name, capacity=CAPACITY)

    def _replica_fault(self, fault: ReplicaFault) -> None:
        replica = self.replicas[fault.replica]
        process = replica.process
        if process is None or process.dead or self._rest.resting:
            return

        def act() -> None:
            self._disturb(fault)  # in quiet times its step comes long after the fault's moment
            if fault.kind == "halt":
                process.halt()
                self._loop.call_later(fault.back_s, process.resume)
                return
            if fault.kind == "kill":
                replica.kill()
            else:
                replica.stop()
            self._loop.call_later(fault.back_s, replica.start)

        self._disturb(fault)
        process.stop_step, process.at_step = process.steps + fault.steps, act

    def _disturb(self, fault: ReplicaFault) -> None:
        """Ask for nothing that takes a leader until one may be there again."""
        back = self._loop.now + fault.back_s
        self._order.disturbed_until = max(self._order.disturbed_until, back + TAKEOVER_S)
        self._partbound.disturb(back)
        for checker in self._waits:
            checker.disturb(back + TAKEOVER_S)
        if self._together is not None:
            self._together.disturb(back)


class KillAfterAsk(Checker):
    """Counts requests to leave backfilled nodes, and reports each to the run."""

    def __init__(self, view: View, stale_s: float, asked: Callable[[int], None]) -> None:
        super().__init__(view, stale_s)
        self._asked, self._count = asked, 0

    def placement(self, old: PlacementFacts | None, new: PlacementFacts | None) -> None:
        """See whether it is one."""
        if was_asked(old, new):
            self._count += 1
            self._asked(self._count)
