"""Runs a fleet in virtual time from a seed, and checks what must never happen.

Never: the limits that all nodes enforce together exceed the budget at any moment, or the traffic exceeds 102% of it
over 5 s. In the end, without faults: each pod has its fair share. After the leader has died for good: each node's
limits are its static share.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry

from fuzz.uplink.fair import fair_rates
from fuzz.uplink.nodes import SimNode, SimPod
from fuzz.uplink.wires import Weather, Wires
from muster.kube.planloop import PlanLoop
from muster.network.uplink.allocation import Allocation
from muster.network.uplink.cache import Owner, UplinkCache
from muster.network.uplink.hub import Hub
from muster.network.uplink.metrics import uplink_metrics
from muster.network.uplink.settings import Settings
from muster.network.uplink.wire import Pair
from muster.sim.virtual.loop import VirtualLoop
from muster.sim.virtual.process import Process
from muster.sim.virtual.sealed import sealed

TICK_S: Final = 0.1
WINDOW_S: Final = 5.0
SLACK: Final = 1.02
ROUNDING_BPS: Final = 16
"""Parts of a node's share are whole numbers. So their sum changes by a few bits when pods come and go."""
SETTLED: Final = 0.95
"""Traffic counts as settled at this part of what fair shares would carry, less the headroom of idle demands."""
_STEPS_MAX: Final = 50_000_000
_METRICS: Final = uplink_metrics(CollectorRegistry())
TEAMS: Final = {"red": 4, "green": 2, "blue": 1, "": 1}
PRIORITIES: Final = (0, 100)
M: Final = 10**6
G: Final = 10**9
BUDGET: Final = Pair(20 * G, 10 * G)
LINE: Final = Pair(10 * G, 10 * G)


class Violated(Exception):
    """Something happened that must never happen."""


@dataclass(frozen=True, kw_only=True)
class UplinkScenario:
    """What happens in a run.

    Attributes:
        seed: of everything random.
        nodes: number of nodes.
        budget: of the fleet.
        line: line rates of a node.
        churn_s: how long pods come and go, and faults happen.
        faults: faults per second among all nodes: broken connections, silent agents, restarted agents.
        lost: probability that a message is late.
        deaths: how often the leader dies during the churn.
    """

    seed: int
    nodes: int = 200
    budget: Pair = BUDGET
    line: Pair = LINE
    churn_s: float = 60.0
    faults: float = 0.5
    lost: float = 0.02
    deaths: int = 1

    def settings(self) -> Settings:
        """Return the settings of the hub."""
        return Settings(
            budget=self.budget,
            floor=Pair(200_000, 200_000),
            line=self.line,
            weights={team: weight for team, weight in TEAMS.items() if team},
            lease_s=20.0,
            decay_s=10.0,
        )


@dataclass
class Outcome:
    """What a run showed.

    Attributes:
        violation: what happened that must never happen; "" if nothing.
        peak: the largest traffic of 5 s, as a part of the budget.
        limits_peak: the largest sum of limits, as a part of the budget.
        errors: for each pod at the end, the difference of its traffic from its fair share, as a part of this share.
        taken_s: how long others took to use an idle share; None if it was not measured.
        used: traffic at the end, as a part of what the fair shares carry.
        reviews: by second: how many agents the hub authenticated.
    """

    violation: str = ""
    peak: float = 0.0
    limits_peak: float = 0.0
    errors: list[float] = field(default_factory=list)
    taken_s: float | None = None
    used: float = 0.0
    reviews: Counter[int] = field(default_factory=Counter)

    def error_at(self, part: float) -> float:
        """Return a quantile of the errors."""
        ordered = sorted(self.errors)
        return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else 0.0


class _NodeOfToken:
    """Reviews tokens, and counts reviews by second."""

    def __init__(self, loop: VirtualLoop, outcome: Outcome) -> None:
        self._loop, self._outcome = loop, outcome

    async def identify(self, token: str) -> str | None:
        """Return the token: simulated agents send their node's name."""
        self._outcome.reviews[int(self._loop.now)] += 1
        await asyncio.sleep(0.002)
        return token


class UplinkRun:
    """One run."""

    def __init__(self, scenario: UplinkScenario, loop: VirtualLoop) -> None:
        self.scenario, self.loop = scenario, loop
        self.rng = random.Random(scenario.seed)
        self.weather = Weather(random.Random(self.rng.getrandbits(64)), scenario.lost)
        self.wires = Wires(loop, self.weather)
        self.nodes: dict[str, SimNode] = {}
        self.outcome = Outcome()
        self._cache: UplinkCache | None = None
        self._leader: Process | None = None
        self._uids = 0
        self._window: deque[tuple[float, float]] = deque(maxlen=round(WINDOW_S / TICK_S))
        self._last = (0.0, 0.0)

    async def run(self) -> Outcome:
        """Run the scenario. Raises Violated."""
        scenario = self.scenario
        static = Pair(*(each // (scenario.nodes + scenario.nodes // 16) for each in scenario.budget))
        for index in range(scenario.nodes):
            self._join(f"node-{index}", static)
        watching = asyncio.create_task(self._carry())
        self.elect()
        try:
            await self._churn(static)
            self._heal()
            await asyncio.sleep(60.0)
            self._compare()
            await self._take_idle_share()
            await self._outlive_leader()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        if watching.done() and not watching.cancelled():
            watching.result()
        return self.outcome

    # The leader

    def elect(self) -> None:
        """Start a leader. It knows the nodes and pods from its informers, and no rates."""
        process = self._leader = Process("leader")
        hub = Hub(_NodeOfToken(self.loop, self.outcome), _METRICS, clock=self.loop.time)
        cache = self._cache = UplinkCache(self.scenario.settings(), self.loop.now)
        for node in self.nodes.values():
            cache.node_changed(node.name, True, self.loop.now)
            for pod in node.pods.values():
                cache.pod_changed(pod.uid, _owner(node, pod))
        planning = PlanLoop("uplink", fence_s=0.0, stall_s=60.0)
        epoch = f"{self.rng.getrandbits(64):x}"
        allocation = Allocation(cache, hub, epoch, planning.wake, _METRICS, clock=self.loop.time, cpu=lambda: 0.0)
        process.spawn(planning.run(allocation.plan))
        self.wires.listen(hub, process)

    def depose(self, *, silently: bool) -> None:
        """Kill the leader."""
        if self._leader is not None:
            self._leader.kill()
        self._leader = self._cache = None
        self.wires.ended(silently=silently)

    # The fleet

    def _join(self, name: str, static: Pair) -> None:
        node = self.nodes[name] = SimNode(
            name, self.loop, self.wires, self.scenario.line, static, random.Random(self.rng.getrandbits(64))
        )
        if self._cache is not None:
            self._cache.node_changed(name, True, self.loop.now)
        for _ in range(self.rng.randrange(3)):
            self._add_pod(node)
        node.start()

    def _add_pod(self, node: SimNode) -> None:
        self._uids += 1
        pod = SimPod(
            f"uid-{self._uids}", self.rng.choice(list(TEAMS)), self.rng.choice(PRIORITIES), self._some_demand()
        )
        node.pods[pod.uid] = pod
        if self._cache is not None:
            self._cache.pod_changed(pod.uid, _owner(node, pod))

    def _some_demand(self) -> Pair:
        kinds = (0, 0, 10 * M, 100 * M, 1 * G, self.scenario.line.in_bps)
        return Pair(self.rng.choice(kinds), self.rng.choice(kinds))

    async def _churn(self, static: Pair) -> None:
        scenario, end = self.scenario, self.loop.now + self.scenario.churn_s
        deaths = sorted(self.rng.uniform(0.2, 0.7) * scenario.churn_s for _ in range(scenario.deaths))
        began, elect_at = self.loop.now, float("inf")
        while self.loop.now < end:
            await asyncio.sleep(0.2)
            if deaths and self.loop.now - began > deaths[0]:
                deaths.pop(0)
                self.depose(silently=self.rng.random() < 0.5)
                elect_at = self.loop.now + self.rng.choice((0.1, 5.0, 20.0, 45.0))
            if self.loop.now > elect_at:
                elect_at = float("inf")
                self.elect()
            for _ in range(max(1, len(self.nodes) // 50)):
                self._change(self.rng.choice(list(self.nodes.values())))
            if self.rng.random() < scenario.faults * 0.2:
                self._fault(self.rng.choice(list(self.nodes.values())))
        if self._leader is None:
            self.elect()

    def _change(self, node: SimNode) -> None:
        if node.pods and self.rng.random() < 0.3:
            uid = self.rng.choice(list(node.pods))
            del node.pods[uid]
            if self._cache is not None:
                self._cache.pod_changed(uid, None)
        elif len(node.pods) < 5 and self.rng.random() < 0.5:
            self._add_pod(node)
        elif node.pods:
            self.rng.choice(list(node.pods.values())).demand = self._some_demand()

    def _fault(self, node: SimNode) -> None:
        kind = self.rng.choice(("break", "cut", "restart", "dead"))
        if kind == "break":
            self.wires.break_one(node.name)
        elif kind == "cut":
            self.wires.cut.add(node.name)
            self.wires.break_one(node.name)
            self.loop.call_later(self.rng.uniform(1.0, 60.0), self.wires.cut.discard, node.name)
        else:
            node.kill()
            wait_s = self.rng.uniform(10.0, 25.0) if kind == "dead" else self.rng.uniform(0.1, 5.0)
            self.loop.call_later(wait_s, self._restart, node)

    def _restart(self, node: SimNode) -> None:
        if node.link is None:
            node.start()

    def _heal(self) -> None:
        self.wires.cut.clear()
        self.weather.lost = 0.0
        for node in self.nodes.values():
            self._restart(node)

    # What is checked

    async def _carry(self) -> None:
        """Move traffic, and check the limits at each moment."""
        budget = self.scenario.budget
        while True:
            await asyncio.sleep(TICK_S)
            carried, totals = [0.0, 0.0], [0, 0]
            for node in self.nodes.values():
                for way, (bits, limit) in enumerate(zip(node.carry(TICK_S), node.total(), strict=True)):
                    carried[way] += bits
                    totals[way] += limit
            self._last = carried[0] / TICK_S, carried[1] / TICK_S
            self._window.append((carried[0], carried[1]))
            for way in (0, 1):
                part = sum(each[way] for each in self._window) / WINDOW_S / budget[way]
                self.outcome.peak = max(self.outcome.peak, part)
                self.outcome.limits_peak = max(self.outcome.limits_peak, totals[way] / budget[way])
                if part > SLACK:
                    self._fail(f"traffic of {WINDOW_S:g} s is {part:.1%} of the budget")
                if totals[way] > budget[way] + ROUNDING_BPS * len(self.nodes):
                    self._fail(f"the limits are {totals[way] / budget[way]:.2%} of the budget, direction {way}")

    def _fail(self, what: str) -> None:
        self.loop.fail(Violated(f"at {self.loop.now:.1f} s: {what}"))

    def _pods(self) -> dict[str, SimPod]:
        return {uid: pod for node in self.nodes.values() for uid, pod in node.pods.items()}

    def _compare(self) -> None:
        """Compare each pod's rate with its fair share."""
        pods, wanted, used = self._pods(), 0.0, 0.0
        for way in (0, 1):
            fair = fair_rates(pods, way, self.scenario.budget[way], TEAMS)
            for node in self.nodes.values():
                for uid, pod in node.pods.items():
                    rate = min(pod.demand[way], node.limit(pod)[way])
                    wanted += fair[uid]
                    used += rate
                    if fair[uid] > 2 * M:
                        self.outcome.errors.append(abs(rate - fair[uid]) / fair[uid])
        self.outcome.used = used / wanted if wanted else 1.0

    async def _take_idle_share(self) -> None:
        """Stop the traffic of a team with a large share, and measure until others use it."""
        pods = self._pods()
        for pod in pods.values():
            pod.demand = Pair(self.scenario.line.in_bps, self.scenario.line.out_bps)
        await asyncio.sleep(20.0)
        for pod in pods.values():
            if pod.team == "red":
                pod.demand = Pair(0, 0)
        began = self.loop.now
        await asyncio.sleep(2 * TICK_S)
        while self._last[0] < SETTLED * self.scenario.budget.in_bps:
            if self.loop.now - began > 30.0:
                return
            await asyncio.sleep(TICK_S)
        self.outcome.taken_s = self.loop.now - began

    async def _outlive_leader(self) -> None:
        """Kill the leader for good: the last limits stay, and decay to the static shares."""
        settings = self.scenario.settings()
        self.depose(silently=True)
        await asyncio.sleep(1.0)  # rates that were sent arrive
        before = {node.name: node.total() for node in self.nodes.values()}
        await asyncio.sleep(settings.lease_s / 2)
        kept = sum(node.total() == before[node.name] for node in self.nodes.values())
        if kept < len(self.nodes):
            self._fail(f"{len(self.nodes) - kept} nodes changed their limits before their lease ended")
        await asyncio.sleep(2 * settings.lease_s + settings.decay_s + 5.0)
        for node in self.nodes.values():
            rates = node.link.rates if node.link is not None else None
            static = rates.static if rates is not None else node.static
            if any(each > share for each, share in zip(node.total(), static, strict=True)):
                self._fail(f"{node.name} still has {node.total()}, its static share is {static}")
        await asyncio.sleep(TICK_S)


def _owner(node: SimNode, pod: SimPod) -> Owner:
    return Owner(node.name, "default", pod.uid, f"job-{pod.team}", pod.team, pod.priority)


def simulate(scenario: UplinkScenario) -> Outcome:
    """Run a scenario in virtual time."""
    loop = VirtualLoop.new(_STEPS_MAX)
    with sealed(loop):
        run = UplinkRun(scenario, loop)
        try:
            loop.run(run.run())
        except Violated as violation:
            run.outcome.violation = str(violation)
        finally:
            loop.wind_up()
    return run.outcome
