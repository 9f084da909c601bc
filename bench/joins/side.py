"""One join: a control plane, DaemonSets, nodes that come all at once, and the result."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry

from bench.gang_spike.process import cpu_s
from bench.joins.prober import Seen
from bench.restart.cluster import CAPACITY, NAMESPACE, Cluster, cluster
from muster.controlplane.clusteraccess import Rule
from muster.fleet.joins.config import CONFIG_KEY, CONFIG_MAP
from muster.fleet.joins.controller import JoinController
from muster.fleet.joins.record import JOINING
from muster.fleet.joins.scrape import Reading, between, read
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import to_dict
from muster.sim.nodes import EmptyRuntime

AT_ONCE, PACED = "at_once", "paced"
WAIT_S = 480.0
PACE = "periodSeconds: 1\nstartNodes: 5\nmaxNodes: 50\n"
AGENTS_NICE = 5
"""Agents run on the nodes in truth: where the cores do not suffice for all, the API server comes first."""
_LABEL = "agent"
_READS: Sequence[Rule] = ({"apiGroups": [""], "resources": ["nodes", "pods"], "verbs": ["list"]},)
_PROBES: Sequence[Rule] = ({"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "create", "patch"]},)


class Outcome(msgspec.Struct, frozen=True):
    """The result of one join. Times in ms and s as named, CPU in seconds.

    Attributes:
        join_s: from the first Node object until all agents have what they need.
        agents_ms: how long each agent took for that, from its container's start.
        agents_refused: 429s that agents got.
        probes: the other client's requests.
        apiserver_p99_ms: of single-object requests, by the API server's own histogram: a bound of a bucket.
        apiserver_refused: 429s of all clients, by the API server's own count.
        apiserver_cpu_s, agents_cpu_s, nodes_cpu_s: of its process, the agents', and the one with simulated nodes.
    """

    join_s: float
    agents_ms: list[float]
    agents_refused: int
    probes: Seen
    apiserver_p99_ms: float
    apiserver_refused: float
    apiserver_cpu_s: float
    agents_cpu_s: float
    nodes_cpu_s: float


class Agents(EmptyRuntime):
    """Pods whose agents run in a process of their own; a pod is Running once its agent has what it needs."""

    def __init__(self) -> None:
        self.taken_ms: list[float] = []
        self.refused = 0
        self.kubeconfigs: list[Path] = []
        self.process: Process | None = None
        self._waiting: dict[str, asyncio.Future[None]] = {}

    async def start(self, pod: Pod, address: str, ended: Callable[[int], None]) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        done = self._waiting[pod.uid] = asyncio.get_running_loop().create_future()
        kubeconfig = self.kubeconfigs[int(pod.metadata.labels[_LABEL])]
        self.process.stdin.write(f"{pod.uid} {kubeconfig} {pod.spec.node_name}\n".encode())
        await done

    async def listen(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            uid, seconds, refused = line.decode().split()
            self.taken_ms.append(float(seconds) * 1e3)
            self.refused += int(refused)
            if not (waiting := self._waiting.pop(uid)).done():  # a pod that was deleted meanwhile waits no more
                waiting.set_result(None)
        raise RuntimeError("the agents' process has ended")


async def join(name: str, nodes: int, daemons: int) -> Outcome:
    """Let so many nodes join, all at once or paced."""
    agents = Agents()
    async with cluster(f"joins-{name}", 0, make_runtime=lambda _: agents, scheduler=True) as made:
        await _prepare(made, agents, daemons)
        config = load_config(made.plane.kubeconfig)
        apiserver = made.plane.pid("kube-apiserver")
        prober_access = made.plane.access.service_account_kubeconfig(NAMESPACE, "prober", _PROBES)
        async with (
            Client(config) as controlling,
            _child("agents", nice=AGENTS_NICE) as agents.process,
            _child("prober", str(prober_access), NAMESPACE) as prober,
        ):
            assert prober.stdout is not None
            await prober.stdout.readline()
            async with asyncio.TaskGroup() as group:
                works = [group.create_task(agents.listen())]
                if name == PACED:
                    controller = JoinController(controlling, NAMESPACE, registry=CollectorRegistry())
                    works.append(group.create_task(controller.run()))
                before, cpu_before, nodes_cpu_before = await _reading(made), cpu_s(apiserver), time.process_time()
                started = time.perf_counter()
                await made.nodes.add(nodes, capacity=CAPACITY, taints=[to_dict(JOINING)] if name == PACED else [])
                await made.nodes.until(lambda: _running(made) == nodes * daemons, "all agents run", timeout_s=WAIT_S)
                join_s = time.perf_counter() - started
                after, cpu_after = await _reading(made), cpu_s(apiserver)
                agents_cpu_s, nodes_cpu_s = cpu_s(agents.process.pid), time.process_time() - nodes_cpu_before
                probes = msgspec.json.decode((await prober.communicate(b""))[0], type=Seen)
                for work in works:
                    work.cancel()
    seen = between(before, after)
    return Outcome(
        join_s=join_s,
        agents_ms=agents.taken_ms,
        agents_refused=agents.refused,
        probes=probes,
        apiserver_p99_ms=(seen.p99_s or 0.0) * 1e3,
        apiserver_refused=seen.refused,
        apiserver_cpu_s=cpu_after - cpu_before,
        agents_cpu_s=agents_cpu_s,
        nodes_cpu_s=nodes_cpu_s,
    )


async def _prepare(made: Cluster, agents: Agents, daemons: int) -> None:
    for number in range(daemons):
        access = made.plane.access.service_account_kubeconfig(NAMESPACE, f"agent-{number}", _READS)
        agents.kubeconfigs.append(access)
        await made.client.create(_daemon_set(number))
    meta = ObjectMeta(name=CONFIG_MAP, namespace=NAMESPACE)
    await made.client.create(ConfigMap(metadata=meta, data={CONFIG_KEY: PACE}))


@asynccontextmanager
async def _child(module: str, *arguments: str, nice: int = 0) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        f"bench.joins.{module}",
        *arguments,
        stdin=PIPE,
        stdout=PIPE,
        preexec_fn=lambda: os.nice(nice) and None,
        limit=1 << 26,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _reading(made: Cluster) -> Reading:
    return read((await made.client.request("GET", "/metrics")).decode())


def _running(made: Cluster) -> int:
    return len(made.pods_of(lambda pod: _LABEL in pod.metadata.labels, "running"))


def _daemon_set(number: int) -> dict[str, object]:
    labels = {_LABEL: str(number)}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": f"agent-{number}", "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "agent", "image": "none"}]}},
        },
    }
