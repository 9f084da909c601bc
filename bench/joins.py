"""What a join of many nodes does to the API server, all at once and at our pace.

A real control plane with simulated nodes. Once a node is open to pods, the DaemonSet controller makes its pods,
kube-scheduler binds them, and each of them, once it runs, lists nodes and the pods of its node, as agents do when they
start. Meanwhile somebody else reads one object and writes it again and again: how long that takes is what is measured,
and how often the API server refused anybody (429).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.plan import percentile
from bench.report import Report, console, emit
from bench.restart.cluster import CAPACITY, NAMESPACE, Cluster, cluster
from bench.running import interrupted
from muster.fleet.joins.config import CONFIG_KEY, CONFIG_MAP
from muster.fleet.joins.controller import JoinController
from muster.fleet.joins.record import JOINING
from muster.fleet.joins.scrape import read
from muster.kube.client import Client
from muster.kube.config import load_config
from muster.kube.core import ConfigMap
from muster.kube.errors import ApiError, TooManyRequests
from muster.kube.meta import ObjectMeta
from muster.kube.pod import Pod
from muster.kube.struct import to_dict
from muster.sim.nodes import EmptyRuntime

AT_ONCE, PACED = "at_once", "paced"
PROBE_S = 0.02
WAIT_S = 480.0
PACE = "periodSeconds: 1\nstartNodes: 5\nmaxNodes: 50\n"


class Agents(EmptyRuntime):
    """Pods that read from the API server when they start."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def start(self, pod: Pod, address: str, ended: Callable[[int], None]) -> None:
        for path in ("/api/v1/nodes", f"/api/v1/pods?fieldSelector=spec.nodeName={pod.spec.node_name}"):
            path, _, query = path.partition("?")
            params = dict([query.split("=", 1)]) if query else {}
            while True:
                try:
                    await self.client.request("GET", path, params=params)
                    break
                except ApiError:  # it starts once it has read what it needs
                    await asyncio.sleep(1)


def daemon_set(number: int) -> dict[str, object]:
    labels = {"agent": str(number)}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": f"agent-{number}", "namespace": NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "agent", "image": "none"}]}},
        },
    }


class Prober:
    """Somebody with work of their own: one read and one write, again and again."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.taken_ms: list[float] = []
        self.refused = 0
        self.failed = 0

    async def run(self) -> None:
        number = 0
        while True:
            number += 1
            body = b'{"data":{"n":"%d"}}' % number
            headers = {"Content-Type": "application/merge-patch+json"}
            path = f"/api/v1/namespaces/{NAMESPACE}/configmaps/probe"
            for method, sent in (("GET", None), ("PATCH", body)):
                started = time.perf_counter()
                try:
                    await self._client.request(
                        method, path, body=sent, headers=headers if sent else None, retry_refused=False
                    )
                except TooManyRequests:
                    self.refused += 1
                except ApiError:
                    self.failed += 1
                self.taken_ms.append((time.perf_counter() - started) * 1e3)
            await asyncio.sleep(PROBE_S)


async def refusals(client: Client) -> float:
    return read((await client.request("GET", "/metrics")).decode()).refused


async def side(name: str, nodes: int, daemons: int) -> dict[str, float]:
    async with cluster(f"joins-{name}", 0, make_runtime=Agents, scheduler=True) as made:
        for number in range(daemons):
            await made.client.create(daemon_set(number))
        await made.client.create(ConfigMap(metadata=ObjectMeta(name="probe", namespace=NAMESPACE)))
        await made.client.create(
            ConfigMap(metadata=ObjectMeta(name=CONFIG_MAP, namespace=NAMESPACE), data={CONFIG_KEY: PACE})
        )
        refused_before = await refusals(made.client)
        config = load_config(made.plane.kubeconfig)
        async with Client(config, user_agent="bench-prober") as probing, Client(config) as controlling:
            prober = Prober(probing)
            works = [asyncio.create_task(prober.run())]
            if name == PACED:
                controller = JoinController(controlling, NAMESPACE, registry=CollectorRegistry())
                works.append(asyncio.create_task(controller.run()))
            started = time.perf_counter()
            try:
                taints = [to_dict(JOINING)] if name == PACED else []
                await made.nodes.add(nodes, capacity=CAPACITY, taints=taints)
                await made.nodes.until(lambda: agents(made) == nodes * daemons, "all agents run", timeout_s=WAIT_S)
            finally:
                took_s = time.perf_counter() - started
                for work in works:
                    work.cancel()
                await asyncio.gather(*works, return_exceptions=True)
        refused = await refusals(made.client) - refused_before
    taken = prober.taken_ms
    return {
        f"{name}_join_s": took_s,
        f"{name}_probe_p50_ms": statistics.median(taken),
        f"{name}_probe_p99_ms": percentile(taken, 0.99),
        f"{name}_probe_max_ms": max(taken),
        f"{name}_probe_refused": prober.refused,
        f"{name}_probe_failed": prober.failed,
        f"{name}_apiserver_429": refused,
    }


def agents(made: Cluster) -> int:
    return len(made.pods_of(lambda pod: "agent" in pod.metadata.labels, "running"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--daemons", type=int, default=4, help="DaemonSets")
    parser.add_argument("--json", default="-", help="also write the report here")
    arguments = parser.parse_args()
    figures: dict[str, float] = {"nodes": arguments.nodes, "daemons": arguments.daemons}

    async def measure() -> None:
        for name in (AT_ONCE, PACED):
            figures.update(await side(name, arguments.nodes, arguments.daemons))

    interrupted("joins", console(), measure)
    table = Table("", "", title="a join")
    for name, figure in figures.items():
        figures[name] = round(figure, 3)
        table.add_row(name, f"{figures[name]:,}")
    emit(Report("joins", figures), arguments.json, [table])


if __name__ == "__main__":
    main()
