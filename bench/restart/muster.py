"""Our side: `muster controller` as a process of its own under the chart's RBAC, real supervisor protocol, real tokens.

A rank is killed inside its pod. A node is lost by falling silent: its Lease and status stop, its pods' connections are
reset, and the API server is not notified.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import msgspec

from bench.controller import controller
from bench.restart.cluster import NAMESPACE, STOP_S, Cluster, Fault, cluster
from bench.restart.outcome import RANKS_RUNNING, Outcome
from muster.api.training_job import TrainingJob, TrainingJobSpec
from muster.api.training_job_status import Fault as RecordedFault
from muster.api.training_job_status import Timeline
from muster.kube.client import Client
from muster.kube.objects.meta import ObjectMeta
from muster.sim.supervisor import SimSupervisor, Work
from muster.sim.supervisors import SupervisorRuntime

WAIT_S = 180.0
TAIL_S = 1.0
POLL_S = 2.0
STAGES = tuple(name for name in msgspec.structs.asdict(Timeline()) if name != "fault")


def job(name: str, ranks: int) -> TrainingJob:
    """A gang of whole nodes, one rank each, that may fail as often as it is made to."""
    spec = TrainingJobSpec(
        replicas=ranks,
        gpus_per_node=8,
        ranks_per_node=1,
        launcher="none",
        image="train",
        command=("train",),
        backoff_limit=1000,
        infrastructure_limit=1000,
        unknown_limit=1000,
    )
    return TrainingJob(metadata=ObjectMeta(name=name, namespace=NAMESPACE), spec=spec)


async def measure(sizes: list[int], faults: tuple[Fault, ...], repetitions: int) -> AsyncIterator[Outcome]:
    """Every size, fault and repetition, on one control plane."""
    runtimes: list[SupervisorRuntime] = []

    def runtime(client: Client) -> SupervisorRuntime:
        runtimes.append(SupervisorRuntime(client, now=lambda: datetime.now(UTC), work=Work(stop_s=STOP_S)))
        return runtimes[0]

    # A job keeps away from the nodes it lost; more than those, so that a wrong alarm ends in writes and not in a wait.
    spares = repetitions + 1 + max(sizes) // 16
    async with (
        cluster("muster", max(sizes) + spares, make_runtime=runtime, scheduler=False) as where,
        controller(where.plane.access, where.client, where.directory),
    ):
        for ranks in sizes:
            gang = _Gang(where, runtimes[0], f"gang-{ranks}", ranks)
            await gang.start()
            for _ in range(repetitions):
                for fault in faults:
                    yield await gang.fail(fault)
            await gang.remove()


class _Gang:
    """One training job under faults."""

    def __init__(self, where: Cluster, runtime: SupervisorRuntime, name: str, ranks: int) -> None:
        self._where, self._runtime, self._name, self._ranks = where, runtime, name, ranks
        self._key = f"{NAMESPACE}/{name}"
        self._attempt = 0
        self._rng = random.Random(ranks)

    async def start(self) -> None:
        await self._where.client.create(job(self._name, self._ranks))
        await self._all_running()

    async def remove(self) -> None:
        await self._where.client.delete(TrainingJob, self._name, namespace=NAMESPACE, propagation="Background")
        await self._where.nodes.until(lambda: not self._where.nodes.pods, "the last pod gone", timeout_s=WAIT_S)

    async def fail(self, fault: Fault) -> Outcome:
        where = self._where
        supervisors = self._runtime.of(self._key)
        await asyncio.sleep(self._rng.uniform(0, POLL_S))  # faults do not wait for a moment in the cycle of polls
        async with asyncio.timeout(WAIT_S):
            await supervisors[0].checkpoint()
        victim = supervisors[self._ranks // 2]
        node = where.nodes.pods[victim.identity.pod_uid].node.name
        since, began, wall = where.audit.position(), asyncio.get_running_loop().time(), time.time()
        if fault == "rank_killed":
            self._runtime.kill_rank(victim)
        else:
            where.nodes.lose(node)
        stages = {RANKS_RUNNING: await self._all_running() - began}
        recorded = await self._recovered(wall)
        stages |= {name: moment.timestamp() - wall for name, moment in _moments(recorded)}
        await asyncio.sleep(TAIL_S)  # events and the last status; progress reports never end and are not counted
        writes = where.audit.writes(since)
        if fault == "node_lost":
            await where.nodes.recover(node)
        return Outcome("muster", self._ranks, fault, stages, writes)

    async def _all_running(self) -> float:
        """Until every rank runs in an attempt newer than the last."""

        def running() -> list[SimSupervisor]:
            ours = self._runtime.of(self._key)
            return [one for one in ours if one.state == "running" and one.attempt > self._attempt]

        at = await self._runtime.until(
            lambda: len(running()) == self._ranks, f"all {self._ranks} ranks of {self._name} running", timeout_s=WAIT_S
        )
        self._attempt = running()[0].attempt
        return at

    async def _recovered(self, wall: float) -> RecordedFault:
        """Returns the fault from the job's status, once a step was done beyond it."""
        async with asyncio.timeout(WAIT_S):
            while True:
                status = (await self._where.client.get(TrainingJob, self._name, NAMESPACE)).status
                newest = status.faults[-1] if status.faults else None
                useful = newest.timeline.useful if newest is not None and newest.timeline is not None else None
                if newest is not None and useful is not None and useful.timestamp() > wall:
                    return newest
                await asyncio.sleep(0.2)


def _moments(fault: RecordedFault) -> list[tuple[str, datetime]]:
    assert fault.timeline is not None
    return [(name, at) for name in STAGES if (at := getattr(fault.timeline, name)) is not None]
