"""Replicas of `muster controller` in virtual time, on an API server whose writes are noted."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from fuzz.ranks import Ranks
from fuzz.replica import Replica
from fuzz.roads import RoadWeather, WeatheredRoads
from fuzz.workload import JobSpec
from muster.embedded.apiserver.request import Request
from muster.sim.nodes import EmptyRuntime, SimNodes
from muster.sim.virtual.cluster import VirtualCluster
from muster.sim.virtual.line import Lines
from muster.sim.virtual.loop import VirtualLoop
from muster.sim.virtual.network import Calm, Fates

GPU = "nvidia.com/gpu"
CAPACITY = {"cpu": "96", "memory": "1Ti", "pods": "110", GPU: "8"}
NAMESPACE = "default"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
JOBS = f"/apis/muster.dev/v1alpha1/namespaces/{NAMESPACE}/trainingjobs"
PLACEMENTS = f"/apis/muster.dev/v1alpha1/namespaces/{NAMESPACE}/placements"


class Write(NamedTuple):
    """What a replica wrote, and when."""

    at: float
    what: str
    body: bytes


class World:
    """A cluster with so many nodes and replicas, whose requests meet these fates.

    Args:
        nodes: their number.
        replicas: of `muster controller`.
        fates: of their requests.
        supervised: by namespace/name, jobs whose supervisors run; pods of others have none.
        stop_s: from the deletion of a pod until the kubelet ends its supervisor.

    Attributes:
        ranks: of these jobs.
    """

    def __init__(
        self,
        nodes: int,
        replicas: int = 1,
        fates: Callable[[random.Random], Fates] = Calm,
        supervised: Mapping[str, JobSpec] | None = None,
        stop_s: float = 0.5,
    ) -> None:
        self.loop = VirtualLoop.new()
        self.cluster = VirtualCluster(self.loop, random.Random(7))
        self.writes: list[Write] = []
        """All that replicas wrote, but for renewals of Leases."""
        self._nodes, self._stop_s = nodes, stop_s
        self.cluster.trace.listeners.append(self._heard)
        lines = Lines(
            self.loop, WeatheredRoads(self.loop, RoadWeather(calm_at=0.0), random.Random(1)), random.Random(2)
        )
        self.ranks: Ranks | None = None
        if supervised is not None:
            kubelets = self.cluster.client("supervisors")
            self.ranks = Ranks(kubelets, lines, stop_s=1.0, jobs=supervised, seed=3)
        self.replicas = [
            Replica(
                self.cluster,
                f"controller-{number}",
                fates(random.Random(number)),
                random.Random(number),
                skew_s=0.0,
                lease_s=15.0,
                failed=self.loop.fail,
                lines=lines,
            )
            for number in range(replicas)
        ]

    def _heard(self, now: float, client: str, request: Request, code: int, body: bytes) -> None:
        if client.startswith("controller-") and request.method != "GET" and "/leases" not in request.path:
            self.writes.append(Write(now, f"{request.method} {request.path}", request.body))

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Do something as an administrator."""
        return self.cluster.call(method, path, body)

    def add_gang(self, name: str, size: int, **spec: Any) -> None:
        """Make the pods of a gang; each takes a node."""
        for slot in range(size):
            self.add_member(name, slot, size, **spec)

    def add_member(self, gang: str, slot: int, size: int, **spec: Any) -> None:
        """Make one pod of a gang."""
        meta = {
            "name": f"{gang}-{slot}-0",
            "labels": {"muster.dev/gang": gang, "muster.dev/slot": str(slot)},
            "annotations": {"muster.dev/gang-size": str(size), "muster.dev/gang-uid": gang},
        }
        container = {"name": "worker", "image": "none", "resources": {"limits": {GPU: "8"}}}
        pod = {"metadata": meta, "spec": {"schedulerName": "muster", "containers": [container], **spec}}
        self.call("POST", PODS, pod)

    def add_job(self, name: str, replicas: int, **spec: Any) -> None:
        """Make a training job that takes whole nodes."""
        body = {"replicas": replicas, "gpusPerNode": 8, "image": "none", "command": ["train"], **spec}
        self.call("POST", JOBS, {"metadata": {"name": name}, "spec": body})

    def job(self, name: str) -> dict[str, Any]:
        """The job as the API server has it."""
        return self.call("GET", f"{JOBS}/{name}")

    def condition(self, name: str, kind: str) -> dict[str, Any]:
        """A condition of the job; empty where it is not there."""
        conditions = self.job(name)["status"].get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), {})

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        """Start everything, tell the story, stop."""

        async def main() -> None:
            self.cluster.start()
            sim = SimNodes(
                self.cluster.client("kubelets"),
                runtime=self.ranks or EmptyRuntime(),
                now=lambda: datetime.fromtimestamp(self.loop.now, UTC),
                stop_s=self._stop_s,
            )
            async with sim:
                await sim.add(self._nodes, capacity=CAPACITY)
                for number, replica in enumerate(self.replicas):
                    self.loop.call_later(0.1 * number, replica.start)
                await story()
                for replica in self.replicas:
                    replica.kill()

        try:
            self.loop.run(main())
        finally:
            self.loop.wind_up()
