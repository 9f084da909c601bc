"""Many nodes that break at once: from the line in the kernel's log until the scheduler's taint is on each of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path

import msgspec

from bench.controller import controller
from bench.gang_spike.cluster import Cluster, cluster
from bench.gang_spike.process import cpu_s, peak_rss_mb
from bench.health.agentprocess import PATIENCE_S, agents, logs, until
from bench.health.agents import LOG
from muster.agent.settings import PERIOD_S
from muster.api.names import HEALTH_CONFIG_MAP, SYSTEM_NAMESPACE
from muster.api.quarantine import quarantined
from muster.controlplane.children import Child
from muster.fleet.remediation.config import CONFIG_KEY
from muster.kube.client import Client
from muster.kube.informer import Informer
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.node import Node

OPEN = "mode: act\nbreaker: {share: 100%}\nshared: {nodes: 0}\nquarantined: {all: 100%, pool: 100%, team: 100%}\n"
"""Explicit settings that hold no quarantine back; how many nodes are worked on at once is as always."""
DEFAULT = "mode: act\n"
XID = "{time} {node} kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n"
_HELD_S = 20.0
"""No node may be quarantined beyond the breaker in this time."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one run.

    Attributes:
        quarantined_s: for each node, how long after its line in the log it was seen in quarantine, in order.
        controller_cpu_s, apiserver_cpu_s, agents_cpu_s: from the first line to the last node.
        controller_rss_mb: the most it ever had.
    """

    quarantined_s: list[float]
    controller_cpu_s: float
    apiserver_cpu_s: float
    agents_cpu_s: float
    controller_rss_mb: float


async def fault_many(nodes: int, faulty: int, config: str, *, all_of_them: bool) -> Outcome:
    """Break so many nodes at once, and see which get into quarantine.

    Args:
        nodes: there are.
        faulty: of them, at the same moment.
        config: of remediation.
        all_of_them: wait until all of them are; otherwise for a while.

    Raises:
        TimeoutError: one does not get there.
    """
    async with cluster("health", nodes + 1, {}, {}) as where:
        first, *victims = where.nodes[: faulty + 1]
        folder = logs(where)
        async with (
            _remediation(where, config) as child,
            agents(where, [first, *victims]) as reporting,
            seen_out(where.admin) as seen,
        ):
            await _works(where, folder, first, seen)
            await asyncio.sleep(
                PERIOD_S + 1.0
            )  # an agent writes once a period: no node breaks right after its first report
            pids = (child.pid, where.plane.pid("kube-apiserver"), reporting.pid)
            before = [cpu_s(pid) for pid in pids]
            began = time.monotonic()
            for name in victims:
                _break(folder, name)

            async def done() -> bool:
                return seen.keys() >= set(victims)

            with suppress(TimeoutError):
                await until(done, "all are in quarantine", PATIENCE_S if all_of_them else _HELD_S)
            used = [cpu_s(pid) - was for pid, was in zip(pids, before, strict=True)]
            took = sorted(seen[name] - began for name in victims if name in seen)
            if all_of_them and len(took) < faulty:
                raise TimeoutError(f"{len(took)} of {faulty} nodes are in quarantine; log:\n{child.log_tail()}")
            return Outcome(
                quarantined_s=took,
                controller_cpu_s=used[0],
                apiserver_cpu_s=used[1],
                agents_cpu_s=used[2],
                controller_rss_mb=peak_rss_mb(child.pid),
            )


@asynccontextmanager
async def _remediation(where: Cluster, config: str) -> AsyncIterator[Child]:
    """The controller with everything of its own, as the chart installs it."""
    values = ["health.enabled=true"]
    made = controller(
        where.plane.access,
        where.admin,
        where.directory,
        templates=["health-remediation"],
        values=values,
        options=["--health"],
    )
    async with made as child:
        patch = {"data": {CONFIG_KEY: config}}
        await where.admin.patch(ConfigMap, HEALTH_CONFIG_MAP, patch, namespace=SYSTEM_NAMESPACE)
        yield child


@asynccontextmanager
async def seen_out(client: Client) -> AsyncIterator[dict[str, float]]:
    """Watches when each node was first seen in quarantine; monotonic seconds."""
    seen: dict[str, float] = {}

    def changed(old: Node | None, new: Node | None) -> None:
        if new is not None and quarantined(new):
            seen.setdefault(new.name, time.monotonic())

    informer = Informer(client, Node)
    informer.add_handler(changed)
    task = asyncio.create_task(informer.run())
    try:
        yield seen
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _works(where: Cluster, folder: Path, name: str, seen: dict[str, float]) -> None:
    """Breaks one node first, to show that everything runs."""
    _break(folder, name)

    async def there() -> bool:
        return name in seen

    await until(there, "one node is in quarantine")


def _break(folder: Path, name: str) -> None:
    with (folder / name / LOG).open("a") as log:
        log.write(XID.format(time=datetime.now().astimezone().isoformat(), node=name))
