"""Gangs of plain pods on modelled nodes. Some may be evicted when their nodes are needed."""

from __future__ import annotations

import time
from typing import Any

from muster.api.names import ANNOTATION_RESTARTABLE
from muster.api.placement import Placement
from muster.kube.objects.pod import Pod
from muster.scheduler.plan import Settings
from tests.scenarios.scheduler.conftest import Cluster
from tests.support.waiting import until

HASTY = Settings(backfill_min_run_s=0.5)
"""Backfilled gangs may be asked to leave after half a second."""


async def add_restartable(cluster: Cluster, gang: str, size: int, **options: Any) -> None:
    """A gang whose pods all declare that they may be evicted and recreated."""
    for slot in range(size):
        pod = cluster.pod(gang, slot, size, **options)
        pod["metadata"]["annotations"][ANNOTATION_RESTARTABLE] = "true"
        await cluster.client.create(pod)


async def a_second_later() -> None:
    """Wait until what is created now is later in the queue than what exists: creation times have whole seconds."""
    second = int(time.time())
    await until("the next second begins", lambda: int(time.time()) > second)


async def end(cluster: Cluster, gang: str) -> None:
    """The gang is done: its pods and its Placement are gone."""
    await cluster.kill(gang)
    await cluster.client.delete(Placement, gang, namespace=cluster.namespace)


async def waits(cluster: Cluster, gang: str, why: str) -> None:
    """Wait until the scheduler has said why the gang waits."""

    async def reported() -> bool:
        return any(
            event.reason == "FailedScheduling"
            and event.message.endswith(f"[{why}]")
            and event.involved_object.name.startswith(f"{gang}-")
            for event in await cluster.events()
        )

    await until(f"{gang} waits and the reason is {why}", reported)
    await a_second_later()


async def record(cluster: Cluster, gang: str) -> str:
    """The gang for which the nodes of this one are reserved; "" without one."""
    placement = await cluster.placement(gang)
    backfill = placement.spec.backfill if placement is not None else None
    return backfill.gang.removeprefix(f"{cluster.namespace}/") if backfill is not None else ""


async def uids(cluster: Cluster, gang: str) -> set[str]:
    """The UIDs of its bound pods. A gang that was asked to leave gets others."""
    return {pod.uid for pod in await cluster.pods(gang) if pod.spec.node_name and not pod.terminating}


async def wide_waits(cluster: Cluster, settings: Settings = HASTY) -> None:
    """One gang has one of three nodes; another waits for all three."""
    await cluster.add_nodes(3)
    cluster.schedule(settings=settings)
    await cluster.add_gang("long", 1)
    await cluster.until_bound("long", 1)
    await cluster.add_gang("wide", 3)
    await waits(cluster, "wide", "NotEnoughNodes")


async def gone(cluster: Cluster, *names: str) -> None:
    """Wait until the pods are gone."""

    async def absent() -> bool:
        return not {pod.name for pod in (await cluster.client.list(Pod, cluster.namespace)).items} & set(names)

    await until(f"{names} are gone", absent)
