"""One spike: pods created as fast as they can be, until a watcher has seen the last of them bound."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from bench.gang_spike.cluster import Cluster, cluster
from bench.gang_spike.outcome import Outcome
from bench.gang_spike.process import cpu_s, peak_rss_mb
from bench.gang_spike.shape import NAMESPACE, Shape, pod
from bench.gang_spike.sides import RAW, Side
from bench.gang_spike.watcher import BoundPod, Watcher, watching
from muster.controlplane.children import Child

WORKERS = 48
"""Requests of the creating client under way at once: more make it no faster."""
READY_TIMEOUT_S = 120.0
QUIET_S = 2.0
"""After the scheduler bound its first pod, and after the last: what it still does then counts as its CPU time."""
_PROBE = "probe"

T = TypeVar("T")


class BrokenError(Exception):
    """A scheduler did not get ready, ended, or bound two pods to one node: the run has no figure."""


async def measure(side: Side, shape: Shape, nodes: int, repetition: int, timeout_s: float) -> Outcome:
    """Start a control plane and a scheduler, and measure one spike. Raises BrokenError."""
    async with (
        cluster(side.name, nodes, side.feature_gates, side.runtime_config) as where,
        side.start(where) as scheduler,
    ):
        if scheduler is not None:
            await _ready(where, side, scheduler)
        return await _spike(where, side, scheduler, shape, repetition, timeout_s)


async def _ready(where: Cluster, side: Side, scheduler: Child) -> None:
    """The scheduler knows every node and can bind: it has bound a pod, which goes again."""
    async with watching(where.watcher) as watcher:
        await where.creator.create(pod(_PROBE, side.scheduler_name, {}), kind=BoundPod)
        if not await _until(watcher, 1, READY_TIMEOUT_S, scheduler):
            log = scheduler.log_tail()
            raise BrokenError(f"{side.name}: no pod was bound within {READY_TIMEOUT_S:g} s of its start:\n{log}")
        await where.creator.delete(BoundPod, _PROBE, namespace=NAMESPACE, grace_s=0)
        if not await _until(watcher, 0, READY_TIMEOUT_S, scheduler):
            raise BrokenError(f"{side.name}: the first pod was not deleted within {READY_TIMEOUT_S:g} s")
    await asyncio.sleep(QUIET_S)


async def _spike(
    where: Cluster, side: Side, scheduler: Child | None, shape: Shape, repetition: int, timeout_s: float
) -> Outcome:
    pids = {"apiserver": where.plane.pid("kube-apiserver"), "etcd": where.plane.pid("etcd"), "clients": os.getpid()}
    if scheduler is not None:
        pids["scheduler"] = scheduler.pid
    clock = asyncio.get_running_loop().time
    async with watching(where.watcher) as watcher:
        before = {role: cpu_s(pid) for role, pid in pids.items()}
        began = clock()
        if side is RAW:
            created = await _create_and_bind(where, side, shape)
        else:
            created = await _create(where, side, shape)
        whole = await _until(watcher, shape.pods, began + timeout_s - clock(), scheduler)
        to_bound_s = sum(cpu_s(pid) - before[role] for role, pid in pids.items())
        await asyncio.sleep(QUIET_S)
        used = {role: cpu_s(pid) - before[role] for role, pid in pids.items()}
        if shared := watcher.sharing():
            raise BrokenError(f"{side.name}: nodes with more than one whole-node pod: {', '.join(shared[:5])}")
        return Outcome(
            side=side.name,
            shape=shape,
            repetition=repetition,
            created_s=created - began,
            first_bound_s=watcher.first_s - began if watcher.node_of else None,
            all_bound_s=watcher.last_s - began if whole else None,
            bound=len(watcher.node_of),
            whole_gangs=_whole_gangs(watcher, shape),
            cpu_s=used,
            rss_peak_mb=peak_rss_mb(scheduler.pid) if scheduler is not None else None,
            cpu_to_bound_s=to_bound_s if whole else None,
        )


async def _until(watcher: Watcher, bound: int, timeout_s: float, scheduler: Child | None) -> bool:
    """Wait until so many pods are bound. Returns whether in time; raises BrokenError where the scheduler ended."""
    clock = asyncio.get_running_loop().time
    deadline = clock() + timeout_s
    while not await watcher.until(bound, min(1.0, deadline - clock())):
        if scheduler is not None and scheduler.exit_code is not None:
            raise BrokenError(f"the scheduler ended with {scheduler.exit_code}:\n{scheduler.log_tail()}")
        if clock() >= deadline:
            return False
    return True


def _whole_gangs(watcher: Watcher, shape: Shape) -> int:
    bound = Counter(name.rpartition("-")[0] for name in watcher.node_of)
    return sum(count == shape.size for count in bound.values())


async def _create(where: Cluster, side: Side, shape: Shape) -> float:
    """Create everything, gang by gang; return the event loop's time after the last answer."""

    async def create(member: tuple[str, int]) -> None:
        await _create_pod(where, side, shape, member)

    for gang in shape.gang_names():
        if side.gang_object is not None:
            await where.creator.create(dict(side.gang_object(gang, shape.size)))
    await _all([(gang, slot) for gang in shape.gang_names() for slot in range(shape.size)], create)
    return asyncio.get_running_loop().time()


async def _create_and_bind(where: Cluster, side: Side, shape: Shape) -> float:
    """Create everything and bind each gang as soon as its last pod exists; return the time after the last create."""
    free = iter(where.nodes)
    waiting: dict[str, list[BoundPod]] = {gang: [] for gang in shape.gang_names()}
    complete: asyncio.Queue[BoundPod] = asyncio.Queue()

    async def create(member: tuple[str, int]) -> None:
        gang, _ = member
        made = await _create_pod(where, side, shape, member)
        waiting[gang].append(made)
        if len(waiting[gang]) == shape.size:
            for ready in waiting.pop(gang):
                complete.put_nowait(ready)

    async def bind() -> None:
        while True:
            made = await complete.get()
            await where.creator.bind(made.name, next(free), namespace=NAMESPACE, uid=made.uid)
            complete.task_done()

    async with asyncio.TaskGroup() as group:
        binders = [group.create_task(bind()) for _ in range(WORKERS)]
        await _all([(gang, slot) for gang in shape.gang_names() for slot in range(shape.size)], create)
        created = asyncio.get_running_loop().time()
        await complete.join()
        for binder in binders:
            binder.cancel()
    return created


async def _create_pod(where: Cluster, side: Side, shape: Shape, member: tuple[str, int]) -> BoundPod:
    gang, slot = member
    fields = side.in_gang(gang, slot, shape.size)
    return await where.creator.create(pod(f"{gang}-{slot}", side.scheduler_name, fields), kind=BoundPod)


async def _all(items: Sequence[T], do: Callable[[T], Awaitable[None]]) -> None:
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await do(item)

    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(worker())
