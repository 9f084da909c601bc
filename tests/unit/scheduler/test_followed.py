"""The scheduler beside the controller of training jobs, in one process and in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from fuzz.replica import PODS
from muster.api.placement import Placement
from muster.api.training_job import TrainingJob
from muster.api.trimmed import FORMS
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.informers import Informers
from muster.kube.metrics import kube_metrics
from muster.kube.objects.node import Node
from muster.scheduler.controller import SchedulerController
from muster.sim.virtual.network import Calm, InProcessTransport
from muster.trainingjobs.controller import TrainingJobController
from tests.support.virtualreplicas import World

SHARED = [kind.RESOURCE.path() for kind in (Node, Placement, TrainingJob)]


class Counting(InProcessTransport):
    """Knows how many watches of each path are open."""

    def __init__(self, world: World) -> None:
        super().__init__(world.cluster.core, "controller-0", Calm(random.Random(2)), world.cluster.trace)
        self.open = Counter[str]()

    @asynccontextmanager
    async def chunks(
        self, path: str, *, params: Mapping[str, str], stall_s: float, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        self.open[path] += 1
        try:
            async with super().chunks(path, params=params, stall_s=stall_s, headers=headers) as chunks:
                yield chunks
        finally:
            self.open[path] -= 1


def test_nothing_is_watched_twice_and_one_term_of_the_scheduler_follows_another() -> None:
    world = World(4, replicas=0)
    registry = CollectorRegistry()
    common: dict[str, Any] = {"clock": lambda: world.loop.now, "registry": registry, "rng": random.Random(1)}

    async def story() -> None:
        transport = Counting(world)
        client = Client(ClusterConfig(server="http://none"), transport=transport, metrics=kube_metrics(registry))
        common["informers"] = Informers(client, FORMS, rng=random.Random(3))
        jobs = TrainingJobController(client, elector=None, cluster_secret=b"none", pods=PODS, **common)
        working = asyncio.create_task(jobs.run())
        for name in ("first", "second"):
            stop = asyncio.Event()
            scheduler = SchedulerController(client, "default", name, waits=jobs.waits, **common)
            term = asyncio.create_task(scheduler.run(stop))
            world.add_job(name, 2)
            await asyncio.sleep(20.0)
            assert world.condition(name, "Admitted")["status"] == "True"
            assert [transport.open[path] for path in SHARED] == [1, 1, 1]
            stop.set()
            await term
        before = len(scheduler.state.gangs)
        world.add_job("third", 1)
        await asyncio.sleep(20.0)
        assert len(scheduler.state.gangs) == before, "who does not lead hears nothing"
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)

    world.run(story)
