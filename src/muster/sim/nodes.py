"""Simulated nodes with their kubelets: thousands in one process, without containers, with any API server.

All kubelets share one client and one watch on bound pods. Each node's Lease is renewed with the period of a real
kubelet. A bound pod is running after `start_s`, and a deleted pod has ended after `stop_s`. A lost node stops
renewing its Lease at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Protocol

from muster.kube.client import Client
from muster.kube.errors import ApiError, Conflict, Gone, NotFound
from muster.kube.objects.coordination import Lease
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import at_microsecond
from muster.kube.watch import BOOKMARK, DELETED
from muster.sim import nodeobjects, podstatus

LEASE_PERIOD_S = 10.0
"""Period of a kubelet's renewals (Kubernetes docs, "Node heartbeats"): a quarter of the 40 s a Lease lasts."""
UNREACHABLE = "node.kubernetes.io/unreachable"
_BOUND = "spec.nodeName!="
_WRITES_AT_ONCE = 64
_RETRY_S = 0.5
NO_LABELS: Mapping[str, str] = MappingProxyType({})

log = logging.getLogger(__name__)


class PodRuntime(Protocol):
    """Runs the content of simulated pods."""

    async def start(self, pod: Pod, address: str, ended: Callable[[int], None]) -> None:
        """Start the containers; the pod is Running when this returns.

        `ended` is called with the exit code if they end.
        """

    async def stop(self, pod: Pod) -> None:
        """Stop the containers; they have ended when this returns."""

    def vanish(self, pod: Pod) -> None:
        """End at once without notice, as in a power cut: connections are reset."""


class EmptyRuntime:
    """Containers that do nothing."""

    async def start(self, pod: Pod, address: str, ended: Callable[[int], None]) -> None:
        """Do nothing."""

    async def stop(self, pod: Pod) -> None:
        """Do nothing."""

    def vanish(self, pod: Pod) -> None:
        """Do nothing."""


@dataclass(eq=False)
class SimNode:
    """A machine and its kubelet."""

    name: str
    number: int
    alive: bool = True
    boot: int = 1
    addresses: int = 0
    pods: dict[str, SimPod] = field(default_factory=dict)

    @property
    def host(self) -> str:
        """The node's address."""
        return f"10.{128 + (self.number >> 8)}.{self.number & 255}.1"

    def next_address(self) -> str:
        """Return an address for another pod."""
        self.addresses = self.addresses % 250 + 1
        return f"10.{self.number >> 8}.{self.number & 255}.{1 + self.addresses}"


@dataclass(eq=False)
class SimPod:
    """A pod on a live node; `phase` is starting, running, ended or stopping."""

    pod: Pod
    node: SimNode
    phase: str = "starting"
    code: int | None = None
    task: asyncio.Task[None] | None = None


class SimNodes:
    """The simulated nodes of one cluster; `async with` starts their kubelets, leaving it stops them.

    Args:
        client: sends the kubelets' requests, with an administrator's or a kubelet's account.
        runtime: runs the content of pods.
        now: the clock for timestamps; everything else uses the event loop's clock.
        start_s: seconds from binding to Running, without the runtime's own part.
        stop_s: seconds from the deletion to the end of the containers, without the runtime's own part.
        prefix: prefix of node names.
    """

    def __init__(
        self,
        client: Client,
        *,
        runtime: PodRuntime,
        now: Callable[[], datetime],
        start_s: float = 0.5,
        stop_s: float = 0.5,
        prefix: str = "sim",
    ) -> None:
        self._client, self._runtime, self._now = client, runtime, now
        self._start_s, self._stop_s, self._prefix = start_s, stop_s, prefix
        self._tasks: set[asyncio.Task[None]] = set()
        self._on_change: set[asyncio.Event] = set()
        self._made = 0
        self.nodes: dict[str, SimNode] = {}
        self.pods: dict[str, SimPod] = {}
        self.cut: dict[str, asyncio.Event] = {}
        """Nodes that cannot reach the API server. Their pods continue, but their Leases and status are not updated."""

    async def __aenter__(self) -> SimNodes:
        self._spawn(self._follow())
        self._spawn(self._renew())
        self._spawn(self._keep_ready())
        return self

    async def __aexit__(self, *exc: object) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def add(
        self,
        count: int,
        *,
        capacity: Mapping[str, str],
        labels: Mapping[str, str] = NO_LABELS,
        taints: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Register this many more nodes."""
        first, self._made = self._made, self._made + count
        fresh = [SimNode(f"{self._prefix}-{number:05d}", number) for number in range(first, first + count)]
        self.nodes |= {
            node.name: node for node in fresh
        }  # add them first, because the scheduler may bind a pod to a node before all nodes exist
        gate = asyncio.Semaphore(_WRITES_AT_ONCE)

        async def register(node: SimNode) -> None:
            async with gate:
                await self._client.create(
                    nodeobjects.node(node.name, node.host, node.boot, capacity, labels, self._now(), taints)
                )
                await self._client.create(nodeobjects.lease(node.name, self._now()))

        await asyncio.gather(*(register(node) for node in fresh))

    async def join(
        self,
        name: str,
        *,
        capacity: Mapping[str, str],
        labels: Mapping[str, str] = NO_LABELS,
        taints: Sequence[Mapping[str, str]] = (),
        ready_after_s: float,
    ) -> None:
        """Register one more node by its name. Its kubelet reports it Ready after the given time."""
        node = SimNode(name, self._made)
        self._made += 1
        made = nodeobjects.node(name, node.host, node.boot, capacity, labels, self._now(), taints)
        made["status"]["conditions"] = nodeobjects.conditions(self._now(), ready="False")
        await self._client.create(made)
        await self._client.create(nodeobjects.lease(name, self._now()))
        await asyncio.sleep(ready_after_s)
        self.nodes[name] = node
        await self._post_status(node)

    def leave(self, name: str) -> None:
        """Remove the machine permanently; its Node object stays until it is deleted."""
        self.lose(name)
        del self.nodes[name]

    def lose(self, name: str) -> None:
        """Make a node fail as in a power cut: its kubelet stops, and its pods' connections are reset."""
        node = self.nodes[name]
        node.alive = False
        for sim in list(node.pods.values()):
            self._forget(sim)
            self._runtime.vanish(sim.pod)

    async def register_again(
        self,
        name: str,
        *,
        capacity: Mapping[str, str],
        labels: Mapping[str, str] = NO_LABELS,
        taints: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Create the Node object of a deleted node again; `recover` then brings its kubelet back."""
        node = self.nodes[name]
        await self._client.create(nodeobjects.node(name, node.host, node.boot, capacity, labels, self._now(), taints))

    def cut_off(self, name: str) -> None:
        """Disconnect a node from the API server."""
        self.cut.setdefault(name, asyncio.Event())

    async def heal(self, name: str) -> None:
        """Reconnect a node: its kubelet learns the changes of its pods."""
        healed = self.cut.pop(name, None)
        if healed is not None:
            healed.set()
        node = self.nodes[name]
        if not node.alive:
            return
        for pod in (await self._client.list(Pod, field_selector=f"spec.nodeName={name}")).items:
            self._seen(pod)
        await self._renew_lease(name)

    async def recover(self, name: str) -> None:
        """Boot a node again: its old pods fail, deleted pods are confirmed, and the node is Ready."""
        node = self.nodes[name]
        await self._connected(node)
        node.boot += 1
        selector = f"spec.nodeName={name}"
        for pod in (await self._client.list(Pod, field_selector=selector)).items:
            if pod.terminating:
                await self._confirm(pod)
            elif not pod.finished:
                await self._write_status(pod, podstatus.ended(pod, code=255, now=self._now()))
        node.alive = True
        await self._renew_lease(name)
        await self._post_status(node)

    async def end(self, uid: str, code: int) -> None:
        """End the pod's containers with `code`, and report it."""
        sim = self.pods.get(uid)
        if sim is None or sim.phase != "running":
            return
        sim.phase = "ended"
        await self._connected(sim.node)
        await self.report_ended(sim.pod, code=code)
        self._changed()

    async def report_ended(self, pod: Pod, *, code: int, disruption: str = "") -> None:
        """Mark a pod as ended, as its kubelet does. For a lost node, the control plane does this."""
        await self._write_status(pod, podstatus.ended(pod, code=code, now=self._now(), disruption=disruption))

    async def report_unreachable(self, name: str) -> None:
        """Mark a node as the node lifecycle controller does 50 s after its last Lease: Ready Unknown, tainted."""
        status = {"conditions": nodeobjects.conditions(self._now(), ready="Unknown")}
        taints = [{"key": UNREACHABLE, "effect": effect} for effect in ("NoSchedule", "NoExecute")]
        await self._client.patch(Node, name, {"spec": {"taints": taints}})
        await self._client.patch(Node, name, {"status": status}, subresource="status")

    async def until(self, condition: Callable[[], bool], what: str, *, timeout_s: float) -> float:
        """Wait until a condition about the pods holds, and return the event loop's time.

        The TimeoutError names the condition.
        """
        changed = asyncio.Event()
        self._on_change.add(changed)
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():
                    changed.clear()
                    await changed.wait()
        except TimeoutError:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}") from None
        finally:
            self._on_change.discard(changed)
        return asyncio.get_running_loop().time()

    # ---- the kubelets

    async def _follow(self) -> None:
        """Lists and watches bound pods once for all kubelets."""
        while True:
            try:
                listing = await self._client.list_all(Pod, field_selector=_BOUND)
                present = {pod.uid for pod in listing.items}
                for sim in [sim for uid, sim in self.pods.items() if uid not in present]:
                    self._removed(sim.pod)
                for pod in listing.items:
                    self._seen(pod)
                version = listing.resource_version
                while True:
                    batches = self._client.watch_batches(Pod, field_selector=_BOUND, resource_version=version)
                    async with contextlib.aclosing(batches):
                        async for batch in batches:
                            for event in batch:
                                version = event.resource_version
                                if event.type == DELETED:
                                    self._removed(event.object)
                                elif event.type != BOOKMARK:
                                    self._seen(event.object)
                            self._changed()
            except Gone:
                continue
            except ApiError as error:
                log.warning("simulated kubelets: watch: %s", error)
                await asyncio.sleep(_RETRY_S)

    def _seen(self, pod: Pod) -> None:
        node = self.nodes.get(pod.spec.node_name)
        if node is None or not node.alive or node.name in self.cut:
            return
        sim = self.pods.get(pod.uid)
        if sim is None:
            if pod.finished and not pod.terminating:
                return
            sim = self.pods[pod.uid] = node.pods[pod.uid] = SimPod(pod, node)
            if not pod.terminating:
                sim.task = self._spawn(self._start(sim))
                return
        sim.pod = pod
        if pod.terminating and sim.phase != "stopping":
            if sim.task is not None:
                sim.task.cancel()
            ran, sim.phase = sim.phase, "stopping"
            sim.task = self._spawn(self._stop(sim, ran != "ended" and not pod.finished))

    def _removed(self, pod: Pod) -> None:
        sim = self.pods.get(pod.uid)
        if sim is not None:
            self._forget(sim)
            self._runtime.vanish(pod)

    async def _start(self, sim: SimPod) -> None:
        address = sim.node.next_address()
        await asyncio.sleep(self._start_s)

        def ended(code: int) -> None:
            sim.code = code
            self._spawn(self.end(sim.pod.uid, code))

        await self._runtime.start(sim.pod, address, ended)
        await self._connected(sim.node)
        patch = podstatus.running(sim.pod, host=sim.node.host, address=address, now=self._now())
        if await self._write_status(sim.pod, patch) and sim.phase == "starting":
            sim.phase = "running"
            self._changed()
            if sim.code is not None:  # they ended before their start was reported
                await self.end(sim.pod.uid, sim.code)

    async def _stop(self, sim: SimPod, running: bool) -> None:
        if running:
            await asyncio.sleep(self._stop_s)
            await self._runtime.stop(sim.pod)
        await self._connected(sim.node)
        await self._confirm(sim.pod)

    async def _confirm(self, pod: Pod) -> None:
        """Confirm to the API server that the containers of a deleted pod have ended."""
        with contextlib.suppress(NotFound, Conflict):
            await self._client.delete(Pod, pod.name, namespace=pod.namespace, uid=pod.uid, grace_s=0)

    async def _write_status(self, pod: Pod, patch: bytes) -> bool:
        """Writes a pod's status; returns whether the pod still existed."""
        with contextlib.suppress(NotFound):
            written = await self._client.patch(Pod, pod.name, patch, namespace=pod.namespace, subresource="status")
            return written.uid == pod.uid
        return False

    async def _connected(self, node: SimNode) -> None:
        """Wait until the API server can be reached from the node."""
        while (healed := self.cut.get(node.name)) is not None:
            await healed.wait()

    def _forget(self, sim: SimPod) -> None:
        if sim.task is not None:
            sim.task.cancel()
        self.pods.pop(sim.pod.uid, None)
        sim.node.pods.pop(sim.pod.uid, None)

    async def _renew(self) -> None:
        """Renews every Lease once a period, evenly spread; a slow answer does not delay other renewals."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            if not self.nodes:
                due = loop.time() + _RETRY_S
                await asyncio.sleep(_RETRY_S)
            for node in list(self.nodes.values()):
                due = max(due, loop.time() - LEASE_PERIOD_S) + LEASE_PERIOD_S / len(self.nodes)
                await asyncio.sleep(max(0.0, due - loop.time()))
                if node.alive and node.name not in self.cut:
                    self._spawn(self._renew_lease(node.name))

    async def _keep_ready(self) -> None:
        """Report a live node as Ready again if the control plane marked it otherwise, as kubelets do every 10 s."""
        while True:
            await asyncio.sleep(LEASE_PERIOD_S)
            with contextlib.suppress(ApiError):
                for node in (await self._client.list_all(Node)).items:
                    ours = self.nodes.get(node.name)
                    if ours is not None and ours.alive and not node.ready and node.name not in self.cut:
                        await self._post_status(ours)

    async def report_ready(self, name: str, *, ready: bool) -> None:
        """Report a node's Ready condition, as its kubelet does."""
        await self._post_status(self.nodes[name], "True" if ready else "False")

    async def _post_status(self, node: SimNode, ready: str = "True") -> None:
        info, conditions = nodeobjects.info(node.name, node.boot), nodeobjects.conditions(self._now(), ready=ready)
        status = {"nodeInfo": info, "conditions": conditions}
        await self._client.patch(Node, node.name, {"status": status}, subresource="status")

    async def _renew_lease(self, name: str) -> None:
        spec = {"renewTime": at_microsecond(self._now())}
        with contextlib.suppress(ApiError):  # the next renewal is due soon
            await self._client.patch(Lease, name, {"spec": spec}, namespace=nodeobjects.LEASE_NAMESPACE)

    # ---- tasks

    def _changed(self) -> None:
        for event in self._on_change:
            event.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a simulated kubelet failed", exc_info=error)
