"""The cluster both sides run on: a real control plane, its audit log, simulated nodes."""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from bench.audit import AuditLog
from muster.controlplane.programs import ControlPlane
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.objects.pod import Pod
from muster.sim.nodes import EmptyRuntime, PodRuntime, SimNodes, SimPod

Fault = Literal["rank_killed", "node_lost"]
FAULTS: tuple[Fault, ...] = ("rank_killed", "node_lost")

NAMESPACE = "default"
GPU = "nvidia.com/gpu"
CAPACITY = {"cpu": "64", "memory": "512Gi", "pods": "110", "ephemeral-storage": "1Ti", GPU: "8"}
KUBELET_AGENT, BENCH_AGENT = "sim-kubelet", "bench"
START_S = STOP_S = 0.5
"""A kubelet's time to start and stop containers whose image is present; the same for both sides."""
SPARES = 4
QPS = 1000
"""Client limit of Kubernetes' own components, far above their defaults (20 and 50), for the peer's benefit."""

log = logging.getLogger("bench.restart")


@dataclass
class Cluster:
    """A control plane with simulated nodes, and an administrator's client that is not counted."""

    plane: ControlPlane
    client: Client
    nodes: SimNodes
    audit: AuditLog
    directory: Path

    def pods_of(self, selector: Callable[[Pod], bool], phase: str) -> list[SimPod]:
        """Pods on live nodes in this phase."""
        return [sim for sim in self.nodes.pods.values() if sim.phase == phase and selector(sim.pod)]

    async def settled_writes(self, since: int) -> Counter[str]:
        """Writes since `since`, once none has come for a second; 10 s at most."""
        end = self.audit.position()
        for _ in range(10):
            await asyncio.sleep(1.0)
            if (now := self.audit.position()) == end:
                break
            end = now
        return self.audit.writes(since)


@asynccontextmanager
async def cluster(
    name: str, count: int, *, make_runtime: Callable[[Client], PodRuntime] | None = None, scheduler: bool
) -> AsyncIterator[Cluster]:
    """Start a control plane with so many simulated nodes; everything of it is gone at the end."""
    with tempfile.TemporaryDirectory(prefix=f"muster-bench-{name}-") as folder:
        directory = Path(folder)
        audit = AuditLog(directory, ignored_agents=[KUBELET_AGENT, BENCH_AGENT])
        limits = [f"--kube-api-qps={QPS}", f"--kube-api-burst={QPS}"]
        data = directory / "control-plane"
        data.mkdir()
        plane = ControlPlane(
            directory=data,
            controller_manager=True,
            scheduler=scheduler,
            extra_args={
                "kube-apiserver": audit.apiserver_arguments,
                "kube-controller-manager": limits,
                "kube-scheduler": limits,
            },
        )
        with plane:
            config = load_config(plane.kubeconfig)
            async with (
                Client(config, user_agent=BENCH_AGENT) as client,
                Client(config, user_agent=KUBELET_AGENT) as kubelet,
            ):
                runtime = make_runtime(kubelet) if make_runtime else EmptyRuntime()
                nodes = SimNodes(
                    kubelet, runtime=runtime, now=lambda: datetime.now(UTC), start_s=START_S, stop_s=STOP_S
                )
                async with nodes:
                    await nodes.add(count, capacity=CAPACITY)
                    yield Cluster(plane, client, nodes, audit, directory)
