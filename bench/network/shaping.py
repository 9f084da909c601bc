"""50 pods of 5 teams share an uplink of a node while pods come and go; beside it a policer, in the same run.

The kernel, the flows, the node's loop and the controller's hub are real; the fleet is one node. Shares are compared
with weighted max-min fairness in the last 2 s of each phase. The peer is a token bucket on each pod's link with a short
queue (tbf), as the bandwidth plugin sets it, with the same total.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import ipaddress
import random
import selectors
import socket
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from prometheus_client import CollectorRegistry

from bench.report import Goal, at_most, spread
from muster.kube.planloop import PlanLoop
from muster.kube.progress import Progress
from muster.network.localpods.pod import LocalPod
from muster.network.netlink.socket import ROUTE, NetlinkSocket
from muster.network.shaping.enforcer import Enforcer
from muster.network.shaping.memory import Memory
from muster.network.shaping.metrics import ShapingMetrics
from muster.network.shaping.node import NodeLimiter
from muster.network.shaping.shaper import Reserved, Shaper
from muster.network.uplink.allocation import Allocation
from muster.network.uplink.cache import Owner, UplinkCache
from muster.network.uplink.decide import fill
from muster.network.uplink.hub import Hub, StreamSending
from muster.network.uplink.link import Link, Streams
from muster.network.uplink.metrics import uplink_metrics
from muster.network.uplink.settings import Settings
from muster.network.uplink.wire import Pair
from tests.support.networknamespaces import Network, Node

PODS: Final = 50
WEIGHTS: Final[Mapping[str, int]] = {"a": 3, "b": 2, "c": 1, "d": 1, "e": 1}
BUDGET_BPS: Final = 200_000_000
_LINE: Final = Pair(10 * BUDGET_BPS, 10 * BUDGET_BPS)
_FLOOR: Final = Pair(256_000, 256_000)
_NODE: Final = "node"
PHASE_S: Final = 6.0
USED: Final = 0.85
"""The payload of a full budget is 0.955 of it: headers count too."""
_SAMPLE_S: Final = 0.25
_CLOSE: Final = 0.25
_CHUNK: Final = bytes(64 * 1024)
_UNSENT_BYTES: Final = 64 * 1024
"""What a sender may hold back. With more, a flow that stops would send for seconds, so its share would not be idle."""
_TOTAL_RETRANSMITS: Final = slice(100, 104)


class Flows:
    """One download per pod, moved by one thread. Only those that are active send."""

    def __init__(self, node: Node) -> None:
        self._senders: list[socket.socket] = []
        self._receivers: list[socket.socket] = []
        self.received = [0] * PODS
        self._active: frozenset[int] = frozenset()
        self._stop = threading.Event()
        with node.outside.socket() as listening:
            listening.bind(("192.0.2.2", 0))
            listening.listen(PODS)
            for pod in node.pods:
                receiver = pod.socket()
                receiver.connect(listening.getsockname())
                sender, _ = listening.accept()
                for each in (sender, receiver):
                    each.setblocking(False)
                sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
                self._senders.append(sender)
                self._receivers.append(receiver)
        self._thread = threading.Thread(target=self._move)
        self._thread.start()

    def activate(self, pods: Iterable[int]) -> None:
        self._active = frozenset(pods)

    @property
    def retransmits(self) -> int:
        return sum(
            int.from_bytes(each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[_TOTAL_RETRANSMITS], sys.byteorder)
            for each in self._senders
        )

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        for each in (*self._senders, *self._receivers):
            each.close()

    def _move(self) -> None:
        reading, writing = selectors.DefaultSelector(), selectors.DefaultSelector()
        for index, receiver in enumerate(self._receivers):
            reading.register(receiver, selectors.EVENT_READ, index)
        current: frozenset[int] = frozenset()
        while not self._stop.is_set():
            active = self._active
            for index in active - current:
                writing.register(self._senders[index], selectors.EVENT_WRITE, index)
            for index in current - active:
                writing.unregister(self._senders[index])
            current = active
            for key, _ in reading.select(0.002):
                self.received[key.data] += len(self._receivers[key.data].recv(1 << 18))
            for key, _ in writing.select(0):
                self._senders[key.data].send(_CHUNK)
        reading.close()
        writing.close()


class AnyAgent:
    """Accepts each agent as the node that it names."""

    async def identify(self, token: str) -> str | None:
        return token


@contextlib.asynccontextmanager
async def controller() -> AsyncIterator[Link]:
    """Run the controller's hub and plans; yields the link of an agent, connected by a pair of sockets without TLS."""
    metrics = uplink_metrics(CollectorRegistry())
    cache = UplinkCache(
        Settings(budget=Pair(BUDGET_BPS, BUDGET_BPS), floor=_FLOOR, line=_LINE, weights=WEIGHTS), time.monotonic()
    )
    cache.node_changed(_NODE, True, time.monotonic())
    for pod in range(PODS):
        cache.pod_changed(str(pod), Owner(_NODE, "bench", str(pod), str(pod), team_of(pod), 0))
    hub = Hub(AnyAgent(), metrics, clock=time.monotonic)
    plans = PlanLoop("uplink", fence_s=0.0, stall_s=60.0)
    allocation = Allocation(cache, hub, "bench", plans.wake, metrics, clock=time.monotonic, cpu=time.thread_time)
    tasks: list[asyncio.Task[None]] = []

    async def dial() -> Streams:
        near, far = socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=far)
        tasks.append(asyncio.create_task(hub.serve(reader, StreamSending(writer))))
        return await asyncio.open_connection(sock=near)

    link = Link(_NODE, dial, lambda: _NODE)
    tasks += [asyncio.create_task(plans.run(allocation.plan)), asyncio.create_task(link.run())]
    try:
        yield link
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Pods:
    """The pods of the node."""

    def __init__(self, node: Node) -> None:
        self.revision = 1
        self.pods = {
            str(number): LocalPod(
                namespace="bench", name=str(number), uid=str(number), addresses=node.addresses(number)
            )
            for number in range(PODS)
        }

    async def changed(self, revision: int) -> int:
        raise NotImplementedError

    def cgroups(self, pod: LocalPod) -> tuple[str, ...]:
        return ()

    def host_interface(self, pod: LocalPod) -> str:
        return ""


def team_of(pod: int) -> str:
    return "abcde"[pod % 5]


def ideal(active: Iterable[int]) -> dict[int, float]:
    """Return the fair shares, in bits/s."""
    teams: dict[str, list[int]] = {}
    for pod in active:
        teams.setdefault(team_of(pod), []).append(pod)
    shares = fill(dict.fromkeys(teams, BUDGET_BPS), WEIGHTS, BUDGET_BPS)
    return {pod: shares[team] / len(pods) for team, pods in teams.items() for pod in pods}


def phases(repetitions: int) -> list[frozenset[int]]:
    """Return which pods are active in each phase: about half of them, another half each time."""
    rng = random.Random(16)
    return [frozenset(rng.sample(range(PODS), rng.randrange(20, 31))) for _ in range(2 + repetitions)]


class Phase(NamedTuple):
    """What a phase showed.

    Attributes:
        errors: of the shares in its last 2 s.
        converge_s: time until nine of ten shares stayed close to their fair share for 1 s.
        used_s: time until the payload of all flows stayed above USED of the budget for 0.5 s.
        total_bps: payload in its second half.
    """

    errors: list[float]
    converge_s: float
    used_s: float
    total_bps: float


def watch(flows: Flows, active: frozenset[int]) -> Phase:
    """Run a phase."""
    flows.activate(active)
    began = time.monotonic()
    samples = [(began, list(flows.received))]
    while time.monotonic() - began < PHASE_S:
        time.sleep(_SAMPLE_S)
        samples.append((time.monotonic(), list(flows.received)))
    want = ideal(active)

    def errors(at: int, seconds: float) -> list[float]:
        """Compare the seconds that end with this sample."""
        (since, before), (until, after) = samples[max(0, at - round(seconds / _SAMPLE_S))], samples[at]
        return [abs(8 * (after[pod] - before[pod]) / (until - since) - want[pod]) / want[pod] for pod in active]

    last = len(samples) - 1
    close = next((at for at in range(4, last) if _quantile(errors(at, 1.0), 0.9) <= _CLOSE), last)

    def payload_bps(first: int, at: int) -> float:
        """Return what the active pods received."""
        (since, before), (until, after) = samples[first], samples[at]
        return 8 * sum(after[pod] - before[pod] for pod in active) / (until - since)

    used = next((at for at in range(2, last) if payload_bps(at - 2, at) >= USED * BUDGET_BPS), last)
    return Phase(
        errors(last, 2.0),
        samples[close - round(1 / _SAMPLE_S)][0] - began,
        samples[used - 2][0] - began,
        payload_bps(len(samples) // 2, last),
    )


def measure(repetitions: int) -> tuple[dict[str, float], list[Goal]]:
    """Return the figures and goals."""
    figures: dict[str, float] = {}
    with Network() as network, tempfile.TemporaryDirectory() as folder:
        node = network.node(pods=PODS)
        shaped, retransmits = _shaped(node, Path(folder), repetitions)
        policed, peer_retransmits = _policed(node, repetitions)
    for prefix, done in (("", shaped), ("peer_", policed)):
        spread(f"{prefix}total_of_budget", [each.total_bps / BUDGET_BPS for each in done], figures)
        errors = [error for each in done for error in each.errors]
        figures[f"{prefix}share_error_p50"], figures[f"{prefix}share_error_p99"] = (
            _quantile(errors, part) for part in (0.5, 0.99)
        )
    spread("converge_s", [each.converge_s for each in shaped], figures)
    spread("idle_share_used_s", [each.used_s for each in shaped], figures)
    figures |= {"retransmits_per_gbit": retransmits, "peer_retransmits_per_gbit": peer_retransmits}
    return figures, [
        at_most("an idle share is used by others within 3 s", 3.0, figures["idle_share_used_s_max"]),
        at_most("total of the budget", 1.02, figures["total_of_budget_max"]),
        at_most("retransmits of the policer's", 0.5, retransmits / peer_retransmits if peer_retransmits else None),
    ]


def _quantile(values: list[float], part: float) -> float:
    return round(sorted(values)[round(part * (len(values) - 1))], 4)


def _shaped(node: Node, folder: Path, repetitions: int) -> tuple[list[Phase], float]:
    internal = {ipaddress.ip_network(each): False for each in ("10.0.0.0/8", "fd00::/8")}
    kernel = node.host.call(NetlinkSocket, ROUTE)
    shaper = Shaper(kernel, classes=internal, reserved=Reserved(), state=folder / "classes.json")
    flows = Flows(node)
    stop = threading.Event()
    loop = threading.Thread(target=lambda: asyncio.run(_enforce(shaper, Pods(node), folder, stop)))
    loop.start()
    try:
        return _run(flows, repetitions)
    finally:
        stop.set()
        loop.join()
        flows.close()
        shaper.teardown()
        kernel.close()


async def _enforce(shaper: Shaper, pods: Pods, folder: Path, stop: threading.Event) -> None:
    async with contextlib.AsyncExitStack() as stack:
        thread = stack.enter_context(concurrent.futures.ThreadPoolExecutor(1))
        link = await stack.enter_async_context(controller())

        async def kernel(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return await asyncio.get_running_loop().run_in_executor(thread, lambda: function(*args, **kwargs))

        enforcer = Enforcer(
            NodeLimiter(shaper, None, pods),
            link,
            pods,
            start=Pair(BUDGET_BPS, BUDGET_BPS),
            dry_run=False,
            line=lambda: _LINE,
            memory=Memory(folder / "limits", ""),
            progress=Progress(),
            metrics=ShapingMetrics(CollectorRegistry()),
            kernel=kernel,
        )
        running = asyncio.create_task(enforcer.run())
        await asyncio.to_thread(stop.wait)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def _policed(node: Node, repetitions: int) -> tuple[list[Phase], float]:
    """Limit each pod to an equal part of the budget by a token bucket with a short queue."""
    rate = BUDGET_BPS // (PODS // 2)
    node.host.run(
        *("tc", "-batch", "-"),
        input="".join(f"qdisc add dev pod{pod} root tbf rate {rate}bit burst 64kb limit 64kb\n" for pod in range(PODS)),
    )
    flows = Flows(node)
    try:
        return _run(flows, repetitions)
    finally:
        flows.close()
        for pod in range(PODS):
            node.host.run("tc", "qdisc", "delete", "dev", f"pod{pod}", "root")


def _run(flows: Flows, repetitions: int) -> tuple[list[Phase], float]:
    """Return the phases after the first one, which warms up, and the retransmits per Gbit in them."""
    done: list[Phase] = []
    before, sent = 0, 0
    for number, active in enumerate(phases(repetitions)):
        if number == 1:
            done.clear()
            before, sent = flows.retransmits, sum(flows.received)
        done.append(watch(flows, active))
    gbits = 8 * (sum(flows.received) - sent) / 1e9
    return done, round((flows.retransmits - before) / gbits, 2)
