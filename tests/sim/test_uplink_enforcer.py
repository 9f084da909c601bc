"""The real loop of nodes with the real hub in virtual time: the budget holds through deaths, cuts and restarts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fuzz.uplink import run as runs
from fuzz.uplink.nodes import SimNode
from fuzz.uplink.run import UplinkScenario, simulate
from muster.kube.progress import Progress
from muster.network.localpods.pod import LocalPod
from muster.network.shaping.enforcer import Enforcer
from muster.network.shaping.metrics import ShapingMetrics
from muster.network.shaping.queues import Usage
from muster.network.shaping.shaper import PodUse
from muster.network.uplink.link import Link
from muster.network.uplink.wire import Pair, Rates
from muster.sim.virtual.process import Process

METRICS = ShapingMetrics(CollectorRegistry())


class FluidKernel:
    """Queues whose packets are infinitely small. What is in them outlives the agent."""

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._sent: dict[str, list[float]] = {}

    def setup(self, start: Pair) -> None:
        return

    def refresh(self, *, only_new: bool) -> None:
        return

    def apply(self, limits: Mapping[str, Pair | None], rest: Pair, pods: Mapping[str, LocalPod]) -> Pair:
        self._node.limits = {uid: each for uid, each in limits.items() if each is not None}, rest
        return self._node.total()

    def count(self, pods: Mapping[str, LocalPod]) -> None:
        raise AssertionError("no dry run was asked for")

    def measure(self) -> dict[str, PodUse]:
        use = {}
        for uid, pod in self._node.pods.items():
            sent = self._sent.setdefault(uid, [0.0, 0.0])
            limit = self._node.limit(pod)
            ways = []
            for way in (0, 1):
                sent[way] += pod.carried[way] / 8
                ways.append(Usage(int(sent[way]), 0, 0, int(pod.demand[way] > limit[way])))
            pod.carried = [0.0, 0.0]
            use[uid] = PodUse(*ways)
        return use

    def teardown(self) -> None:
        return

    def state(self) -> dict[str, Any]:
        return {}


class NodePods:
    """The pods of a simulated node."""

    revision = 0

    def __init__(self, node: SimNode) -> None:
        self._node = node

    @property
    def pods(self) -> Mapping[str, LocalPod]:
        return {uid: LocalPod(namespace="d", name=uid, uid=uid, addresses=(uid,)) for uid in self._node.pods}

    async def changed(self, revision: int) -> int:
        raise NotImplementedError

    def cgroups(self, pod: LocalPod) -> tuple[str, ...]:
        return ()

    def host_interface(self, pod: LocalPod) -> str:
        return ""


class EnforcedNode(SimNode):
    """A node with the agent's own loop."""

    def start(self) -> None:
        process = self._process = Process(f"agent-{self.name}")
        link = self.link = Link(
            self.name,
            lambda: self._wires.dial(self.name),
            lambda: self.name,
            clock=self._loop.time,
            rng=random.Random(self._rng.getrandbits(64)),
        )
        link.rates, link.lease_end_s = self._kept
        enforcer = Enforcer(
            FluidKernel(self),
            link,
            NodePods(self),
            start=self.static,
            dry_run=False,
            line=lambda: self.line,
            memory=self,  # type: ignore[arg-type]
            progress=Progress(clock=self._loop.time),
            metrics=METRICS,
            kernel=self._call,
            clock=self._loop.time,
        )
        process.spawn(link.run())
        process.spawn(enforcer.run())

    @staticmethod
    async def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def save(self, end_s: float, rates: Rates) -> None:
        """Keep the limits for the next agent, as Memory does."""
        self._kept = rates, end_s


@pytest.mark.parametrize("seed", [3, 103])
def test_budget_holds_and_shares_are_fair_with_the_agents_own_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "SimNode", EnforcedNode)
    outcome = simulate(UplinkScenario(seed=seed, nodes=20, churn_s=40.0, faults=1.0, deaths=1))
    assert not outcome.violation
    assert outcome.peak <= 1.02
    assert outcome.error_at(0.5) <= 0.03
    assert outcome.used >= 0.9
    assert outcome.taken_s is not None
    assert outcome.taken_s <= 3.0
