"""A modelled cluster in virtual time, with remediation in it, and machines that obey."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace
from prometheus_client import CollectorRegistry

from muster.api.handover import Handover
from muster.api.names import HEALTH_CONFIG_MAP, HEALTH_POLICY_KEY, LABEL_GANG, LABEL_POOL, LABEL_RACK, remediation_name
from muster.api.trust import GPU
from muster.embedded.apiserver.request import Request
from muster.fleet.health.finding import Finding
from muster.fleet.health.record import observed
from muster.fleet.providers.base import Provider
from muster.fleet.remediation.config import CONFIG_KEY
from muster.fleet.remediation.controller import RemediationController
from muster.fleet.remediation.repairs.steps import LABEL_STEP
from muster.kube.errors import ApiError, NotFound
from muster.kube.objects.struct import to_dict
from muster.sim import nodeobjects
from muster.sim.virtual.cluster import VirtualCluster
from muster.sim.virtual.loop import VirtualLoop
from muster.sim.virtual.network import Calm, Fate, WatchFate

NAMESPACE = "muster-system"
OPEN = (
    "mode: act\nbreaker: {share: 100%}\nshared: {nodes: 0}\nquarantined: {all: 100%, pool: 100%, team: 100%}\n"
    "working: {all: 1000, pool: 1000, team: 1000}\n"
)
POLICY = """
version: 1
revision: test
extends: default
codes:
  xid:
    79: {action: reboot, test: 1}
    48: {action: quarantine, test: 1}
    950: {what: a driver of ours, action: reboot, fault: software}
"""
WORKER = f"/api/v1/namespaces/{NAMESPACE}"


class Way(Calm):
    """A way to the API server that may be cut."""

    away = False
    leases_take_s = 0.0

    def request(self, method: str, path: str) -> Fate:
        fate = replace(super().request(method, path), unsent=self.away)
        return replace(fate, back_s=self.leases_take_s) if self.leases_take_s and "kube-node-lease" in path else fate

    def watch(self, path: str) -> WatchFate:
        return WatchFate(refused=self.away, breaks_after_s=3.0)


class VirtualWard:
    """The cluster, and what happens in it."""

    def __init__(self, config: str = OPEN, policy: str = POLICY) -> None:
        self.loop = VirtualLoop.new(steps_max=20_000_000)
        self.cluster = VirtualCluster(self.loop, random.Random(11))
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for name in ("kube-node-lease", "default"):
            with contextlib.suppress(ApiError):
                self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        data = {CONFIG_KEY: config, HEALTH_POLICY_KEY: policy}
        self.call("POST", f"{WORKER}/configmaps", {"metadata": {"name": HEALTH_CONFIG_MAP}, "data": data})
        self.way = Way(random.Random(3))
        self.handover = Handover()
        self.providers: dict[str, Provider] = {}
        self.registry = CollectorRegistry()
        self.booted: list[str] = []
        self.writes: list[tuple[float, str, str]] = []
        self.obeys = True
        self.lease_of: set[str] = set()
        self.alive: set[str] = set()
        """Nodes whose kubelets renew their Leases."""
        self.cluster.trace.listeners.append(self._heard)
        self._task: asyncio.Task[None] | None = None

    def _heard(self, now: float, client: str, request: Request, code: int, body: bytes) -> None:
        if client == "controller" and request.method != "GET" and code < 300:
            self.writes.append((now, request.method, request.path))

    def call(self, method: str, path: str, body: Any = None, patch: str = "merge") -> dict[str, Any]:
        return self.cluster.call(method, path, body, patch=patch)

    # The cluster

    def add_node(self, name: str, *, pool: str = "p", gpus: int = 8, rack: str = "") -> None:
        date = datetime.fromtimestamp(self.loop.now, UTC)
        labels = {LABEL_POOL: pool, **({LABEL_RACK: rack} if rack else {})}
        made = nodeobjects.node(name, "10.0.0.1", 1, {"cpu": "96", GPU: str(gpus)}, labels, date, ())
        self.call("POST", "/api/v1/nodes", made)
        self.boot(name, "boot-0")

    def add_renewed(self, nodes: int) -> list[str]:
        """Add nodes that have renewed their Leases once; their names in order."""
        names = [f"n{number:0{len(str(nodes - 1))}}" for number in range(nodes)]
        for name in names:
            self.add_node(name)
            self.renews(name)
        return names

    def boot(self, name: str, boot: str) -> None:
        self.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"nodeInfo": {"bootID": boot}}})

    def node(self, name: str) -> dict[str, Any]:
        return self.call("GET", f"/api/v1/nodes/{name}")

    def finds(
        self, name: str, code: str = "79", check: str = "xid", component: str = "0000:3b:00", *, timed: bool = False
    ) -> None:
        """The node's agent finds something now; a record that says when it was written counts in the mesh."""
        now = self.loop.now
        found = Finding(check=check, component=component, code=code, first_s=now, last_s=now)
        path = "/apis/muster.dev/v1alpha1/nodehealths"
        with contextlib.suppress(ApiError):
            self.call("POST", path, {"metadata": {"name": name}})
        uid = self.node(name)["metadata"]["uid"]
        status: dict[str, Any] = {"nodeUID": uid, "bootID": "b", "findings": [to_dict(observed(found))]}
        if timed:
            status["time"] = datetime.fromtimestamp(now, UTC).isoformat().replace("+00:00", "Z")
        self.call("PATCH", f"{path}/{name}/status", {"status": status})

    def heartbeat(self, name: str) -> None:
        """The node's agent writes its record again: nothing has changed but its time."""
        now = datetime.fromtimestamp(self.loop.now, UTC).isoformat().replace("+00:00", "Z")
        self.call("PATCH", f"/apis/muster.dev/v1alpha1/nodehealths/{name}/status", {"status": {"time": now}})

    def tests(self, name: str, *, passed: bool = True) -> None:
        node = self.node(name)
        boot = node["status"]["nodeInfo"]["bootID"]
        moment = datetime.fromtimestamp(self.loop.now, UTC).isoformat().replace("+00:00", "Z")
        spec = {
            "nodeUID": node["metadata"]["uid"], "bootID": boot, "level": 3, "passed": passed, "time": moment,
        }  # fmt: skip
        path = "/apis/muster.dev/v1alpha1/preflights"
        try:
            self.call("POST", path, {"metadata": {"name": name}, "spec": spec})
        except ApiError:
            self.call("PATCH", f"{path}/{name}", {"spec": spec})

    def add_pod(self, name: str, node: str, *, gang: str = "") -> None:
        labels = {LABEL_GANG: gang, "muster.dev/slot": "0"} if gang else {}
        container = {"name": "c", "image": "i"}
        spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
        self.call("POST", f"{WORKER}/pods", {"metadata": {"name": name, "labels": labels}, "spec": spec})

    def pods(self, node: str) -> set[str]:
        items = self.call("GET", f"{WORKER}/pods")["items"]
        return {
            each["metadata"]["name"]
            for each in items
            if each["spec"].get("nodeName") == node and LABEL_STEP not in each["metadata"].get("labels", {})
        }

    def renews(self, name: str) -> None:
        path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
        moment = datetime.fromtimestamp(self.loop.now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if name not in self.lease_of:
            self.lease_of.add(name)
            self.call("POST", path, {"metadata": {"name": name}, "spec": {"renewTime": moment}})
        else:
            self.call("PATCH", f"{path}/{name}", {"spec": {"renewTime": moment}})

    def session(self, name: str) -> dict[str, Any] | None:
        uid = self.node(name)["metadata"]["uid"]
        try:
            return self.call("GET", f"/apis/muster.dev/v1alpha1/noderemediations/{remediation_name(name, uid)}")
        except NotFound:
            return None

    def rung(self, name: str) -> str:
        session = self.session(name)
        if session is None:
            return ""
        status = session.get("status", {})
        return str(status["rung"]) if status.get("state", "Open") == "Open" else str(status["state"])

    def out_of_use(self) -> set[str]:
        return {
            node["metadata"]["name"]
            for node in self.call("GET", "/api/v1/nodes")["items"]
            if any(taint["key"] == "muster.dev/quarantine" for taint in node["spec"].get("taints", ()))
        }

    # The controller

    def start(self) -> None:
        self.controller = RemediationController(
            self.cluster.client("controller", self.way, timeout_s=5.0),
            NAMESPACE,
            handover=self.handover,
            clock=lambda: self.loop.now,
            rng=random.Random(5),
            registry=self.registry,
            providers=self.providers,
        )
        self._task = asyncio.create_task(self.controller.run())

    def has_written(self, before: int) -> bool:
        """Whether the controller wrote anything since there were so many writes."""
        return len(self.writes) > before

    async def kill(self) -> None:
        assert self._task is not None
        assert not self._task.done(), self._task.exception()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _kubelets(self) -> None:
        while True:
            for name in sorted(self.alive):
                self.renews(name)
            await asyncio.sleep(10)

    async def _machines(self) -> None:
        done: set[str] = set()
        while True:
            for pod in self.call("GET", f"{WORKER}/pods")["items"]:
                step = pod["metadata"].get("labels", {}).get(LABEL_STEP)
                if step is None or not self.obeys or pod["metadata"]["uid"] in done:
                    continue
                done.add(pod["metadata"]["uid"])
                node = pod["spec"]["nodeName"]
                if step == "reboot":
                    self.booted.append(node)
                    self.boot(node, f"boot-{len(self.booted)}")
                path = f"{WORKER}/pods/{pod['metadata']['name']}/status"
                self.call("PATCH", path, {"status": {"phase": "Succeeded"}})
            await asyncio.sleep(0.5)

    async def until(self, what: str, check: Callable[[], bool], within_s: float = 600.0) -> None:
        deadline = self.loop.now + within_s
        while not check():
            if self._task is not None and self._task.done():
                self._task.result()
            assert self.loop.now < deadline, f"not within {within_s:g} s: {what}"
            await asyncio.sleep(0.1)

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            others = [asyncio.create_task(each) for each in (self._machines(), self._kubelets())]
            self.start()
            await story()
            await self.kill()
            for other in others:
                other.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        try:
            self.loop.run(main())
        finally:
            self.loop.wind_up()
