"""Gangs whose nodes all break at once: from the first finding until every gang runs whole on other nodes."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime

import msgspec

from bench.controller import controller
from bench.gang_spike.process import cpu_s, peak_rss_mb
from bench.health.quarantine import OPEN, seen_out
from bench.restart.cluster import NAMESPACE, STOP_S, cluster
from bench.restart.muster import job
from muster.api.names import HEALTH_CONFIG_MAP, HEALTH_POLICY_KEY, LABEL_GANG, SYSTEM_NAMESPACE
from muster.api.node_health import NodeHealth, NodeHealthStatus, ObservedFinding
from muster.api.training_job import TrainingJob
from muster.fleet.remediation.config import CONFIG_KEY
from muster.kube.client import Client
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.sim.supervisor import Work
from muster.sim.supervisors import SupervisorRuntime

GRACE_S = 10
_PATIENCE_S = 420.0
_WRITES_AT_ONCE = 48
_POLICY = "version: 1\nrevision: bench\nextends: default\ncodes:\n  xid:\n    79: {action: drain}\n"
_CONFIG = OPEN + "working: {all: 100%, pool: 100%, team: 100%}\nspareSeconds: 60\n"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one drain did. Times count from the first finding.

    Attributes:
        up_s: what it took before that until all gangs ran.
    found_s: until all findings were written.
        quarantined_s: until all of the broken nodes were in quarantine.
        restarted_s: until the last gang ran whole on other nodes.
        restarts: of all gangs together.
        charged: restarts that were charged to a program, or to an unknown cause.
    """

    up_s: float
    found_s: float
    quarantined_s: float
    restarted_s: float
    restarts: int
    charged: int
    controller_cpu_s: float
    controller_rss_mb: float
    apiserver_cpu_s: float
    load_average: float


async def drain_all(gangs: int, size: int) -> Outcome:
    """Break all nodes of so many gangs at once. Raises TimeoutError where one does not run again."""
    runtimes: list[SupervisorRuntime] = []

    def runtime(client: Client) -> SupervisorRuntime:
        runtimes.append(SupervisorRuntime(client, now=lambda: datetime.now(UTC), work=Work(stop_s=STOP_S)))
        return runtimes[0]

    count = gangs * size
    async with (
        cluster("health-drain", 2 * count + size, make_runtime=runtime, scheduler=False) as where,
        controller(
            where.plane.access,
            where.client,
            where.directory,
            templates=["health-remediation"],
            values=["health.enabled=true"],
            options=["--health"],
        ) as child,
        seen_out(where.client) as seen,
    ):
        patch = {"data": {CONFIG_KEY: _CONFIG, HEALTH_POLICY_KEY: _POLICY}}
        await where.client.patch(ConfigMap, HEALTH_CONFIG_MAP, patch, namespace=SYSTEM_NAMESPACE)
        names = [f"gang-{number}" for number in range(gangs)]
        began = time.monotonic()
        for name in names:
            await _submit(where.client, name, size)
        await _running(runtimes[0], names, size, attempt=1)
        up_s = time.monotonic() - began
        broken = {sim.node.name for sim in where.nodes.pods.values()}
        uids = await _first_word(where.client, broken)
        pids = (child.pid, where.plane.pid("kube-apiserver"))
        before = [cpu_s(pid) for pid in pids]
        began = time.monotonic()
        await _break(where.client, uids)
        found_s = time.monotonic() - began

        def left() -> bool:
            return not any(sim.phase == "running" and sim.node.name in broken for sim in where.nodes.pods.values())

        await _running(runtimes[0], names, size, attempt=2, and_=left)
        restarted_s = time.monotonic() - began
        used = [cpu_s(pid) - was for pid, was in zip(pids, before, strict=True)]
        quarantined_s = max(seen[name] for name in broken) - began
        restarts, charged = await _charged(where.client)
        return Outcome(
            up_s=up_s,
            found_s=found_s,
            quarantined_s=quarantined_s,
            restarted_s=restarted_s,
            restarts=restarts,
            charged=charged,
            controller_cpu_s=used[0],
            controller_rss_mb=peak_rss_mb(child.pid),
            apiserver_cpu_s=used[1],
            load_average=os.getloadavg()[0],
        )


async def _submit(client: Client, name: str, size: int) -> None:
    """A gang with 10 s to stop, and a PodDisruptionBudget that lets it go."""
    made = job(name, size)
    spec = msgspec.structs.replace(made.spec, stop_grace_seconds=GRACE_S)
    await client.create(msgspec.structs.replace(made, spec=spec))
    budget = {"minAvailable": 0, "selector": {"matchLabels": {LABEL_GANG: name}}}
    meta = {"name": name, "namespace": NAMESPACE}
    await client.create({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": budget})


async def _running(
    runtime: SupervisorRuntime, names: list[str], size: int, *, attempt: int, and_: Callable[[], bool] = lambda: True
) -> None:
    """Until every rank of every gang runs in this attempt or a later one, and something else holds."""

    def whole() -> bool:
        ready = Counter(
            one.identity.job
            for one in runtime.supervisors.values()
            if one.state == "running" and one.attempt >= attempt
        )
        return all(ready[f"{NAMESPACE}/{name}"] == size for name in names) and and_()

    await runtime.until(whole, f"{len(names)} gangs run in attempt {attempt}", timeout_s=_PATIENCE_S)


async def _first_word(client: Client, names: set[str]) -> dict[str, str]:
    """Each node's agent has said before that all is well. Returns the nodes' UIDs."""
    uids = {node.name: node.uid for node in (await client.list_all(Node)).items}
    found = {name: uids[name] for name in names}
    await _each(names, lambda name: client.create(NodeHealth(metadata=ObjectMeta(name=name))))
    await _each(names, lambda name: _say(client, name, NodeHealthStatus(node_uid=uids[name], time=datetime.now(UTC))))
    return found


async def _break(client: Client, uids: dict[str, str]) -> None:
    """Each node's agent says, all at the same moment, that a GPU fell off the bus."""
    now = datetime.now(UTC)
    seen = ObservedFinding(
        check="xid", component="0000:3b:00.0", code="79", first_time=now, last_time=now, message="off the bus"
    )
    await _each(
        uids, lambda name: _say(client, name, NodeHealthStatus(node_uid=uids[name], time=now, findings=(seen,)))
    )


async def _say(client: Client, name: str, status: NodeHealthStatus) -> None:
    await client.patch(NodeHealth, name, {"status": status}, subresource="status")


async def _each(names: Iterable[str], write: Callable[[str], Awaitable[object]]) -> None:
    gate = asyncio.Semaphore(_WRITES_AT_ONCE)

    async def one(name: str) -> None:
        async with gate:
            await write(name)

    await asyncio.gather(*map(one, names))


async def _charged(client: Client) -> tuple[int, int]:
    restarts = charged = 0
    for each in (await client.list_all(TrainingJob)).items:
        counted = each.status.restarts
        if counted is not None:
            restarts += counted.infrastructure + counted.user + counted.unknown
            charged += counted.user + counted.unknown
    return restarts, charged
