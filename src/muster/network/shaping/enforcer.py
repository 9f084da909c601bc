"""The loop of a node: measures twice a second, reports to the hub, and enforces the hub's limits.

Without a hub the last limits hold until their lease ends, and then fall to the static share (`uplink/decay.py`). They
also hold while this process is away, because they are in the kernel.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, Protocol

import msgspec

from muster.kube.progress import Progress
from muster.network.localpods.pod import LocalPod, LocalPods
from muster.network.shaping.demand import Meter
from muster.network.shaping.memory import Memory
from muster.network.shaping.metrics import ShapingMetrics
from muster.network.shaping.shaper import RESERVED, REST, PodUse
from muster.network.uplink.decay import limits as decayed
from muster.network.uplink.decay import static_limits
from muster.network.uplink.wire import Pair, PodDemand, Rates

log = logging.getLogger(__name__)

PASS_S: Final = 0.5
REFRESH_S: Final = 0.9
"""New links of pods are looked for at most this often. News of a link (`linkwatch.py`) arrive earlier."""
REPAIR_S: Final = 10.0
"""The limits are compared with the kernel's state, and all links with other programs' filters, this often."""
LOOP: Final = "uplink"
_DEADLINE_S: Final = 60.0


class Limiter(Protocol):
    """What limits the node's pods: `node.NodeLimiter`. Its methods block, and run one at a time in one thread."""

    def setup(self, start: Pair) -> None:
        """Create or adopt what is in the kernel. Raises OSError."""

    def refresh(self, *, only_new: bool) -> None:
        """Find links of pods. Raises OSError."""

    def apply(self, limits: Mapping[str, Pair | None], rest: Pair, pods: Mapping[str, LocalPod]) -> Pair:
        """Set all limits; return their sum. Raises OSError."""

    def count(self, pods: Mapping[str, LocalPod]) -> None:
        """Only count the packets of the pods. Raises OSError."""

    def measure(self) -> dict[str, PodUse]:
        """Return the counters of all subjects. Raises OSError."""

    def teardown(self) -> None:
        """Remove all limits from the kernel. Raises OSError."""

    def state(self) -> dict[str, Any]:
        """Return what people should know about it, for the agent's page."""


class HubLink(Protocol):
    """The part of `uplink.link.Link` that the loop uses."""

    rates: Rates | None
    lease_end_s: float
    changed: asyncio.Event
    problem: str

    def report(self, line: Pair, pods: Mapping[str, PodDemand]) -> None:
        """Set the newest measurement."""

    def applied(self, rates: Rates | None, total: Pair) -> None:
        """Set what the node enforces."""


class Source(StrEnum):
    """Where the limits in force come from."""

    LEASE = "lease"
    DECAY = "decay"
    STATIC = "static"
    DRY_RUN = "dryRun"


class Enforcer:
    """The loop.

    Args:
        limiter: the kernel's side.
        link: the connection to the hub. It begins with the limits in `memory`.
        pods: of this node.
        start: the static share until the hub has named one.
        dry_run: measure and report only. The hub can also ask for that.
        line: returns what the node's uplink can carry; 0 if it is unknown.
        memory: keeps the limits for a restart of the agent.
        progress: of the agent.
        metrics: of this part.
        kernel: runs a blocking call of the limiter.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        limiter: Limiter,
        link: HubLink,
        pods: LocalPods,
        *,
        start: Pair,
        dry_run: bool,
        line: Callable[[], Pair],
        memory: Memory,
        progress: Progress,
        metrics: ShapingMetrics,
        kernel: Callable[..., Awaitable[Any]] = asyncio.to_thread,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limiter, self._link, self._pods = limiter, link, pods
        self._start, self._dry_run, self._line = start, dry_run, line
        self._memory, self._progress, self._metrics = memory, progress, metrics
        self._kernel, self._clock = kernel, clock
        self._lock = asyncio.Lock()
        self._meter = Meter()
        self._ready = False
        self._removed = False
        self._repaired_s = self._refreshed_s = float("-inf")
        self._in_force: tuple[Mapping[str, Pair | None], Pair, Mapping[str, LocalPod]] | None = None
        self._limits: Mapping[str, Pair | None] = {}
        self._rest = start
        self._total = Pair(0, 0)
        self._source = Source.STATIC
        self._demands: Mapping[str, PodDemand] = {}
        self._unresponsive: frozenset[str] = frozenset()
        self._problem = ""

    async def run(self) -> None:
        """Work until cancelled."""
        self._progress.expect(LOOP, _DEADLINE_S)
        due_s = self._clock()
        while True:
            measure = self._clock() >= due_s
            if measure:
                due_s = self._clock() + PASS_S
            try:
                await self.once(measure=measure)
                self._problem = ""
                self._progress.mark(LOOP)
            except (OSError, ValueError) as error:
                self._ready = False
                self._metrics.errors.inc()
                if str(error) != self._problem:
                    log.warning("uplink: cannot set limits, so the last ones stay: %s", error)
                self._problem = str(error)
            await self._wait(max(0.0, due_s - self._clock()))

    async def links_changed(self) -> None:
        """Limit new links of pods at once, before their first packets."""
        async with self._lock:
            if self._ready and not self._removed:
                try:
                    await self._kernel(self._limiter.refresh, only_new=True)
                except OSError as error:
                    log.warning("uplink: cannot limit a new link yet: %s", error)

    async def once(self, *, measure: bool = True) -> None:
        """Measure, report, enforce.

        Args:
            measure: also measure and report. Without, only enforce: when limits arrive, the use so far is that under
                the former limits, and the hub would compare it with the new ones.

        Raises:
            OSError: the kernel refused.
            ValueError: there are too many addresses.
        """
        async with self._lock:
            now_s = self._clock()
            rates, end_s = self._link.rates, self._link.lease_end_s
            if rates is not None:
                self._memory.save(end_s, rates)
            pods = current(self._pods.pods.values())
            dry_run = self._dry_run or (rates is not None and rates.dry_run)
            if dry_run:
                await self._count(pods)
            elif not self._ready or self._removed:
                await self._kernel(self._limiter.setup, self._static(rates))
                self._ready, self._removed, self._in_force = True, False, None
                self._repaired_s = now_s
            use = await self._report(now_s) if measure else None
            if dry_run:
                self._source, self._limits, self._total = Source.DRY_RUN, {}, Pair(0, 0)
            else:
                await self._enforce(rates, now_s - end_s, pods, now_s)
                self._link.applied(rates, self._total)
            if use is not None:
                self._publish(use)

    async def _report(self, now_s: float) -> Mapping[str, PodUse]:
        use: Mapping[str, PodUse] = await self._kernel(self._limiter.measure)
        line = self._line()
        self._demands = self._meter.step(use, now_s, self._limits, line)
        self._link.report(
            line,
            {name: each for name, each in self._demands.items() if any(each) and name not in (REST, RESERVED)},
        )
        return use

    async def _count(self, pods: Mapping[str, LocalPod]) -> None:
        if not self._removed:
            await self._kernel(self._limiter.teardown)
            self._removed, self._in_force = True, None
        await self._kernel(self._limiter.count, pods)
        self._ready = True

    async def _enforce(self, rates: Rates | None, past_s: float, pods: Mapping[str, LocalPod], now_s: float) -> None:
        if rates is None:
            wanted, rest = static_limits(self._start, pods.keys())
            self._source = Source.STATIC
        else:
            wanted, rest = decayed(rates, past_s, pods.keys())
            ended = past_s >= rates.decay_s + rates.valid_s
            self._source = Source.LEASE if past_s <= 0 else Source.STATIC if ended else Source.DECAY
        limits: Mapping[str, Pair | None] = {uid: wanted.get(uid) for uid in pods}
        if now_s - self._repaired_s >= REPAIR_S:
            await self._kernel(self._limiter.setup, self._static(rates))
            self._repaired_s, self._refreshed_s, self._in_force = now_s, now_s, None
        elif now_s - self._refreshed_s >= REFRESH_S:
            await self._kernel(self._limiter.refresh, only_new=True)
            self._refreshed_s = now_s
        if self._in_force != (limits, rest, pods):
            self._total = await self._kernel(self._limiter.apply, limits, rest, pods)
            self._in_force = limits, rest, pods
            self._limits, self._rest = limits, rest

    def _static(self, rates: Rates | None) -> Pair:
        return rates.static if rates is not None else self._start

    async def _wait(self, delay_s: float) -> None:
        """Wait for the next pass. New limits of the hub end the wait."""
        try:
            async with asyncio.timeout(delay_s):
                await self._link.changed.wait()
        except TimeoutError:
            return
        self._link.changed.clear()

    def _publish(self, use: Mapping[str, PodUse]) -> None:
        named = self._meter.unresponsive
        for subject in named - self._unresponsive:
            pod = self._pods.pods.get(subject)
            name = f"{pod.namespace}/{pod.name}" if pod is not None else subject
            log.warning("uplink: %s does not slow down: its packets are dropped at its limit", name)
        self._unresponsive = named
        self._metrics.set(self._total, self._demands, use, len(named), self._source)

    def page(self) -> bytes:
        """Return the page of this part, as JSON."""
        subjects = {
            subject: {
                "limit": self._limits.get(subject),
                "demand": self._demands.get(subject),
                "unresponsive": subject in self._unresponsive,
            }
            for subject in {*self._limits, *self._demands}
        }
        return msgspec.json.encode(
            {
                "source": self._source,
                "hub": self._link.problem,
                "problem": self._problem,
                "total": self._total,
                "rest": self._rest,
                "subjects": subjects,
                "node": self._limiter.state(),
            }
        )


def current(pods: Iterable[LocalPod]) -> dict[str, LocalPod]:
    """Return the pods that may send packets, by UID. An address belongs to the newest pod that has it."""
    found: dict[str, LocalPod] = {}
    owners: set[str] = set()
    for pod in sorted(pods, key=lambda pod: pod.created_s, reverse=True):
        if pod.ended:
            continue
        if not pod.host_network and owners.intersection(pod.addresses):
            continue
        if not pod.host_network:
            owners.update(pod.addresses)
        found[pod.uid] = pod
    return found
