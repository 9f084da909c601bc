"""What balloons cost a gang: from its first pod to its last one running, on nodes full of balloons and on empty ones.

A real control plane, whose own Deployment and ReplicaSet controllers make the balloons. Simulated kubelets
take 0.5 s to start and to stop a container. Our scheduler and our controller of balloons run in this
process. The two sides take turns on the same nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1]))

from bench.report import Report, console, emit, spread
from bench.restart.cluster import GPU, NAMESPACE, Cluster, cluster
from bench.running import interrupted
from muster.api.placement import Placement
from muster.fleet.balloons.config import CONFIG_KEY, CONFIG_MAP
from muster.fleet.balloons.controller import BalloonController
from muster.fleet.balloons.deployment import PRIORITY_CLASS
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.pod import Pod
from muster.kube.objects.scheduling import PriorityClass
from muster.scheduler.controller import SchedulerController
from tests.support.namespaces import install_kinds

WAIT_S = 60.0
EMPTY, FULL = "empty", "balloons"


def is_balloon(pod: Pod) -> bool:
    return pod.metadata.labels.get("muster.dev/balloon") == "true"


def config(replicas: int) -> dict[str, str]:
    return {
        CONFIG_KEY: f"""\
pools:
- name: all
  nodeSelector: {{kubernetes.io/os: linux}}
  replicas: {replicas}
  resources: {{{GPU}: 8}}
"""
    }


def member(gang: str, slot: int, size: int) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{gang}-{slot}-0",
            "namespace": NAMESPACE,
            "labels": {"muster.dev/gang": gang, "muster.dev/slot": str(slot)},
            "annotations": {"muster.dev/gang-size": str(size), "muster.dev/gang-uid": gang, "muster.dev/attempt": "0"},
        },
        "spec": {
            "schedulerName": "muster",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "worker", "image": "none", "resources": {"limits": {GPU: "8"}}}],
        },
    }


async def start_gang(made: Cluster, gang: str, size: int) -> float:
    """Seconds until all of it runs."""
    started = time.perf_counter()
    await asyncio.gather(*(made.client.create(member(gang, slot, size), kind=Pod) for slot in range(size)))
    await made.nodes.until(lambda: running(made, gang) == size, f"{gang} runs", timeout_s=WAIT_S)
    return time.perf_counter() - started


def running(made: Cluster, gang: str) -> int:
    return len(made.pods_of(lambda pod: pod.metadata.labels.get("muster.dev/gang") == gang, "running"))


async def end_gang(made: Cluster, gang: str, size: int) -> None:
    """As when its job is deleted, and with it all that belongs to that."""
    await made.client.delete(Placement, gang, namespace=NAMESPACE)
    for slot in range(size):
        await made.client.delete(Pod, f"{gang}-{slot}-0", namespace=NAMESPACE)
    await made.nodes.until(
        lambda: not any(sim.pod.metadata.labels.get("muster.dev/gang") == gang for sim in made.nodes.pods.values()),
        f"{gang} is gone",
        timeout_s=WAIT_S,
    )


async def measure(nodes: int, repetitions: int, add: Callable[[str, float], None]) -> None:
    async with cluster("balloons", nodes, scheduler=False) as made:
        await install_kinds(made.client)
        await made.client.create(
            PriorityClass(metadata=ObjectMeta(name=PRIORITY_CLASS), value=-5, preemption_policy="Never")
        )
        await made.client.create(ConfigMap(metadata=ObjectMeta(name=CONFIG_MAP, namespace=NAMESPACE), data=config(0)))
        async with Client(load_config(made.plane.kubeconfig), user_agent="muster-controller") as client:
            scheduler = SchedulerController(client, NAMESPACE, "bench", registry=CollectorRegistry())
            balloons = BalloonController(client, NAMESPACE, "none", registry=CollectorRegistry())
            works = [
                asyncio.create_task(scheduler.run(asyncio.Event())),
                asyncio.create_task(balloons.run()),
            ]
            try:
                for number in range(repetitions + 1):
                    for side in (EMPTY, FULL):
                        count = nodes if side == FULL else 0
                        data = {"data": config(count)}
                        await made.client.patch(ConfigMap, CONFIG_MAP, data, namespace=NAMESPACE)
                        await made.nodes.until(
                            lambda count=count: (  # type: ignore[misc]
                                len(made.pods_of(is_balloon, "running"))
                                == count
                                == sum(is_balloon(sim.pod) for sim in made.nodes.pods.values())
                            ),
                            f"{count} balloons",
                            timeout_s=WAIT_S,
                        )
                        gang = f"{side}-{number}"
                        took_s = await start_gang(made, gang, nodes)
                        await end_gang(made, gang, nodes)
                        if number:  # the first one warms everything up
                            add(side, took_s)
            finally:
                for work in works:
                    work.cancel()
                await asyncio.gather(*works, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--json", default="-", help="also write the report here")
    arguments = parser.parse_args()
    out = console()
    taken: dict[str, list[float]] = {EMPTY: [], FULL: []}

    def add(side: str, took_s: float) -> None:
        taken[side].append(took_s)
        out.print(f"{side}: {took_s:.3f} s")

    interrupted("balloons", out, lambda: measure(arguments.nodes, arguments.repetitions, add))
    figures: dict[str, float] = {"nodes": arguments.nodes, "repetitions": len(taken[FULL])}
    for side, values in taken.items():
        spread(f"gang_start_{side}_s", values, figures)
    pairs = [full - empty for full, empty in zip(taken[FULL], taken[EMPTY], strict=False)]
    spread("balloon_delay_s", pairs, figures)
    figures["load_average"] = round(os.getloadavg()[0], 1)
    table = Table("", "", title="a gang's start")
    for name, figure in figures.items():
        table.add_row(name, f"{figure:,}")
    emit(Report("balloons", figures), arguments.json, [table])


if __name__ == "__main__":
    main()
