"""What following a cluster costs a controller with every part on, against another checkout of Muster in the same run.

A real control plane has the nodes, and pods of others on them. The controllers of both checkouts run one after the
other: each fills its caches, then every node's heartbeat changes. Compare CPU seconds: other work slows both down.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import sys
import urllib.request
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median

from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.controller import served
from bench.gang_spike.cluster import Cluster, cluster
from bench.gang_spike.process import cpu_s, peak_rss_mb
from bench.gang_spike.shape import NAMESPACE
from bench.report import Report, at_most, emit, spread
from muster.api.names import API_VERSION
from muster.controlplane.chart import CHART
from muster.controlplane.children import Child
from muster.controlplane.ports import free_port
from muster.kube.client import STRATEGIC_MERGE_PATCH
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.sim import nodeobjects

HERE = Path(__file__).parents[1]
PARTS = ("--teams", "--balloons", "--joins", "--scaling", "--health", "--preflight", "--preflight-required")
LOOPS = ("trainingjobs", "scheduler", "teams", "balloons", "joins", "scaling", "remediation", "preflight")
CONFIGS = {
    "muster-teams": {"teams.yaml": "allocations: []\n"},
    "muster-scaling": {
        "scaling.yaml": "pools: [{name: none, provider: external, group: g, min: 0, max: 1, price: 1, "
        "template: {labels: {muster.dev/pool: none-such}, capacity: {cpu: 1, memory: 1Gi}}}]\n"
    },
}
SYSTEM = "kube-system"
START_S = 300.0
_AT_ONCE = 48
_WATCHES = re.compile(r'^apiserver_longrunning_requests\{.*verb="WATCH".*\} (\S+)$', re.MULTILINE)


async def each(count: int, work: Callable[[int], Awaitable[object]]) -> None:
    """Run `work` for every number below `count`, some at once."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def one(number: int) -> None:
        async with gate:
            await work(number)

    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(one(number))


async def fill(where: Cluster, pods: int) -> None:
    """Add the pods, our kinds and the configuration that makes every part follow the cluster."""
    where.plane.access.kubectl("apply", "--server-side", "-f", str(CHART / "files" / "crds"))
    await served(where.admin, f"/apis/{API_VERSION}/preflights")
    for name, data in CONFIGS.items():
        await where.admin.create(ConfigMap(metadata=ObjectMeta(name=name, namespace=SYSTEM), data=data))
    resources = {"requests": {"cpu": "100m", "memory": "200Mi"}, "limits": {"memory": "400Mi"}}
    environment = [{"name": f"SETTING_{number}", "value": "x" * 20} for number in range(10)]

    async def add(number: int) -> None:
        container = {"name": "c", "image": "registry.example/agent:1", "resources": resources, "env": environment}
        spec = {"containers": [container], "nodeName": where.nodes[number % len(where.nodes)]}
        meta = {"name": f"pod-{number}", "namespace": NAMESPACE, "labels": {"app": "agent"}}
        await where.admin.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})

    await each(pods, add)


async def watches(where: Cluster) -> float:
    """The number of watches that are open at the API server."""
    page = (await where.admin.request("GET", "/metrics")).decode()
    return sum(map(float, _WATCHES.findall(page)))


async def measured(checkout: Path, where: Cluster) -> dict[str, float]:
    """Run this checkout's controller; returns its figures."""
    port, before = free_port(), await watches(where)
    command = [str(checkout / ".venv/bin/python"), "-m", "muster.cli.main", "controller", *PARTS]
    command += [f"--kubeconfig={where.plane.kubeconfig}", f"--namespace={SYSTEM}", f"--metrics-listen=127.0.0.1:{port}"]
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src")}
    child = Child(command, where.directory / f"{port}.log", environment)
    try:
        async with asyncio.timeout(START_S):
            while not await asyncio.to_thread(_all_plan, port):
                if child.exit_code is not None:
                    raise RuntimeError(f"the controller ended:\n{child.log_tail()}")
                await asyncio.sleep(0.5)
        await asyncio.sleep(15)  # the writes of a new leader
        found = {
            "watches": await watches(where) - before,
            "start_cpu_s": cpu_s(child.pid),
            "rss_mb": _rss_mb(child.pid),
        }
        now = datetime.now(UTC)

        async def beat(number: int) -> None:
            at = (now + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
            conditions = [{**each, "lastHeartbeatTime": at} for each in nodeobjects.conditions(now)]
            patch = {"status": {"conditions": conditions}}
            name = where.nodes[number]
            await where.admin.patch(Node, name, patch, subresource="status", content_type=STRATEGIC_MERGE_PATCH)

        await each(len(where.nodes), beat)
        await asyncio.sleep(10)
        found["heartbeats_cpu_s"] = cpu_s(child.pid) - found["start_cpu_s"]
        return {**found, "peak_rss_mb": peak_rss_mb(child.pid)}
    finally:
        child.stop(grace_s=20)


def _all_plan(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    except OSError:
        return False
    return all(f'muster_progress_age_seconds{{loop="{loop}"}}' in text for loop in LOOPS)


def _rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


async def compare(old: Path, nodes: int, pods: int, repetitions: int) -> dict[str, list[dict[str, float]]]:
    """Both sides, alternately, on one control plane."""
    found: dict[str, list[dict[str, float]]] = {"old": [], "new": []}
    async with cluster("watching", nodes, {}, {}) as where:
        await fill(where, pods)
        for _ in range(repetitions):
            for side, checkout in (("old", old), ("new", HERE)):
                found[side].append(await measured(checkout, where))
                print(side, found[side][-1], file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path, help="the other checkout, after `make setup`")
    parser.add_argument("--nodes", type=int, default=7500)
    parser.add_argument("--pods", type=int, default=15000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--json", default="-", help="also write the report here")
    arguments = parser.parse_args()
    found = asyncio.run(compare(arguments.old.resolve(), arguments.nodes, arguments.pods, arguments.repetitions))
    figures: dict[str, float] = {"nodes": arguments.nodes, "pods": arguments.pods}
    table = Table("figure", "old", "new", "ratio")
    ratios = {}
    for name in found["new"][0]:
        for side, runs in found.items():
            spread(f"{side}_{name}", [run[name] for run in runs], figures)
        ratios[name] = median(new[name] / old[name] for old, new in zip(found["old"], found["new"], strict=True))
        figures[f"{name}_ratio"] = round(ratios[name], 3)
        table.add_row(name, f"{figures[f'old_{name}']:g}", f"{figures[f'new_{name}']:g}", f"{ratios[name]:.2f}")
    goals = [
        at_most(f"{name} of the old code's", 1.0, ratios[name])
        for name in ("rss_mb", "start_cpu_s", "heartbeats_cpu_s")
    ]
    emit(Report("watching", figures, goals), arguments.json, [table])


if __name__ == "__main__":
    main()
