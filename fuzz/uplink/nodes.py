"""Simulated nodes: agents with the real link, limits that they enforce, and pods that use what they may."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from fuzz.uplink.wires import Wires
from muster.network.shaping.enforcer import PASS_S
from muster.network.uplink.decay import limits, static_limits
from muster.network.uplink.link import Link
from muster.network.uplink.wire import Pair, PodDemand, Rates
from muster.sim.virtual.loop import VirtualLoop
from muster.sim.virtual.process import Process


@dataclass
class SimPod:
    """A pod with a true demand. Its traffic is fluid: it uses its demand, or its limit.

    Attributes:
        uid: of the pod.
        team: of the pod.
        priority: of the pod.
        demand: in bits per second.
        carried: bits since the last measurement.
    """

    uid: str
    team: str
    priority: int
    demand: Pair
    carried: list[float] = field(default_factory=lambda: [0.0, 0.0])


class SimNode:
    """A node: the kernel's limits outlive the agent, which may be killed and started again.

    Args:
        name: of the node.
        loop: the event loop.
        wires: the network.
        line: line rates.
        static: the static share that the node's configuration names.
        rng: source of random numbers.
    """

    def __init__(
        self, name: str, loop: VirtualLoop, wires: Wires, line: Pair, static: Pair, rng: random.Random
    ) -> None:
        self.name, self.line, self.static = name, line, static
        self.pods: dict[str, SimPod] = {}
        self.limits: tuple[Mapping[str, Pair], Pair] = static_limits(static, ())
        """What the kernel enforces: limits of subjects, and of the rest."""
        self.silent = False
        """The agent runs, but its reports do not arrive."""
        self._loop, self._wires, self._rng = loop, wires, rng
        self._kept: tuple[Rates | None, float] = (None, float("-inf"))
        self._process: Process | None = None
        self.link: Link | None = None

    def start(self) -> None:
        """Start the agent. It continues with the rates that the one before it kept on disk."""
        process = self._process = Process(f"agent-{self.name}")
        link = self.link = Link(
            self.name,
            lambda: self._wires.dial(self.name),
            lambda: self.name,
            clock=self._loop.time,
            rng=random.Random(self._rng.getrandbits(64)),
        )
        process.spawn(link.run())
        process.spawn(self._enforce(link))
        process.spawn(self._measure(link))

    def kill(self) -> None:
        """Kill the agent. The limits in the kernel stay."""
        if self._process is not None:
            self._process.kill()
            self._process = self.link = None
            self._wires.break_one(self.name)

    async def _enforce(self, link: Link) -> None:
        """Apply rates when they arrive, and at each pass what has decayed."""
        while True:
            link.changed.clear()
            now, present = self._loop.time(), list(self.pods)
            if link.rates is not None:
                self._kept = link.rates, link.lease_end_s
            rates, lease_end_s = self._kept
            if rates is None:
                self.limits = static_limits(self.static, present)
            else:
                self.limits = limits(rates, now - lease_end_s, present)
            link.applied(rates if rates is link.rates and now < lease_end_s else None, self.total())
            try:
                async with asyncio.timeout(PASS_S):
                    await link.changed.wait()
                await asyncio.sleep(self._rng.uniform(0.002, 0.02))  # tc takes a moment
            except TimeoutError:
                continue

    async def _measure(self, link: Link) -> None:
        await asyncio.sleep(self._rng.random() * PASS_S)
        since = self._loop.time()
        while True:
            await asyncio.sleep(PASS_S)
            now = self._loop.time()
            demands = {uid: self._demand(pod, now - since) for uid, pod in self.pods.items()}
            since = now
            link.report(self.line, {uid: each for uid, each in demands.items() if any(each)})

    def _demand(self, pod: SimPod, passed_s: float) -> PodDemand:
        used = [int(bits / passed_s) for bits in pod.carried]
        pod.carried = [0.0, 0.0]
        mine = self.limit(pod)
        asked = [
            line if demand > limit else use
            for demand, limit, use, line in zip(pod.demand, mine, used, self.line, strict=True)
        ]
        return PodDemand(used[0], used[1], asked[0], asked[1])

    def limit(self, pod: SimPod) -> Pair:
        """Return the limit of a pod now; of the pods that share the rest's, an equal part."""
        pods, rest = self.limits
        own = pods.get(pod.uid)
        if own is not None:
            return own
        sharing = sum(each.uid not in pods for each in self.pods.values())
        return Pair(*(each // sharing for each in rest))

    def carry(self, passed_s: float) -> tuple[float, float]:
        """Let the pods use the uplink for a moment. Returns the bits in both directions."""
        total = [0.0, 0.0]
        for pod in self.pods.values():
            for way, (demand, limit) in enumerate(zip(pod.demand, self.limit(pod), strict=True)):
                bits = min(demand, limit) * passed_s
                pod.carried[way] += bits
                total[way] += bits
        return total[0], total[1]

    def total(self) -> Pair:
        """Return the sum of all limits."""
        pods, rest = self.limits
        total_in, total_out = rest
        for each in pods.values():
            total_in += each.in_bps
            total_out += each.out_bps
        return Pair(total_in, total_out)
