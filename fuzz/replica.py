"""A replica of `muster controller` as a simulated process: it competes for the lease, and works while it leads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping

import msgspec
from prometheus_client import CollectorRegistry

from fuzz.rendezvous import serve
from muster.api.names import CONTROLLER_LEASE
from muster.api.trimmed import FORMS
from muster.fleet.providers.base import Provider
from muster.kube.client import Client
from muster.kube.informers import Informers
from muster.kube.leader import LeaderElector
from muster.manager.controllers import Parts, Shared, works_of
from muster.scheduler.plan import Settings
from muster.sim.virtual.cluster import VirtualCluster
from muster.sim.virtual.line import Lines
from muster.sim.virtual.network import Fates
from muster.sim.virtual.process import Process
from muster.trainingjobs.controller import TrainingJobController
from muster.trainingjobs.pods.pod import PodSettings
from muster.trainingjobs.rendezvous.server import RendezvousServer
from muster.trainingjobs.rendezvous.tokens import pod_reviewer

LEASE_NAMESPACE = "default"
BIND_DEADLINE_S = 30.0
HOLD_S = 120.0
PODS = PodSettings(url="https://controller", ca_pem="simulated", muster_image="muster")
SETTINGS = Settings(bind_deadline_s=BIND_DEADLINE_S, hold_s=HOLD_S)
SCHEDULER_ONLY = Parts()
_METRICS = CollectorRegistry()


class Replica:
    """One replica, which the run starts, kills, halts and starts again.

    Args:
        cluster: where it runs.
        name: of its client; each life has an identity of its own.
        fates: of its requests.
        rng: source of its jitter.
        skew_s: how far its clock is ahead.
        lease_s: how long its lease lasts; renewed and given up as `muster controller --lease-duration` does.
        failed: called with an exception that ends it.
        lines: where its supervisors reach it; without, no controller of training jobs runs in it.
        parts: which controllers run in it beside the scheduler.
        providers: of nodes.
        settings: of the scheduler. Where nodes are tested, tests are required.
    """

    def __init__(
        self,
        cluster: VirtualCluster,
        name: str,
        fates: Fates,
        rng: random.Random,
        *,
        skew_s: float,
        lease_s: float,
        failed: Callable[[BaseException], None],
        lines: Lines | None = None,
        parts: Parts = SCHEDULER_ONLY,
        providers: Mapping[str, Provider] | None = None,
        settings: Settings = SETTINGS,
    ) -> None:
        self.name = name
        self.process: Process | None = None
        self.lives = 0
        self._cluster = cluster
        self._fates = fates
        self._rng = rng
        self._skew_s = skew_s
        self._lease_s = lease_s
        self._failed = failed
        self._lines = lines
        self._parts = parts
        self._providers = providers
        self._settings = msgspec.structs.replace(settings, preflight_required=parts.preflight)
        self._main: asyncio.Task[None] | None = None
        self._stopping = False

    def start(self) -> None:
        """Begin a new life; one that was asked to end and has not, is ended first, as a kubelet does."""
        if self.process is not None and not self.process.dead:
            if not self._stopping:
                return
            self.kill()
        self._stopping = False
        self.lives += 1
        self.process = Process(f"{self.name}.{self.lives}")
        self._main = self.process.spawn(self._live(self.process.name))
        self._main.add_done_callback(self._ended)

    def kill(self) -> None:
        """End at once, with whatever is on its way."""
        if self.process is not None:
            self.process.kill()
            if self._lines is not None:
                self._lines.ended(self.process)

    def stop(self) -> None:
        """Ask it to end, as SIGTERM does; its last words are written."""
        if self._main is not None:
            self._stopping = True
            self._main.cancel()

    def _ended(self, main: asyncio.Task[None]) -> None:
        if main is self._main:
            self.kill()
        if not main.cancelled() and (error := main.exception()) is not None:
            self._failed(error)

    async def _live(self, identity: str) -> None:
        seed = self._rng.getrandbits(64)
        client = self._cluster.client(self.name, self._fates)
        elector = LeaderElector(
            client,
            CONTROLLER_LEASE,
            LEASE_NAMESPACE,
            identity,
            lease_duration_s=self._lease_s,
            renew_deadline_s=self._lease_s * 2 / 3,
            retry_period_s=self._lease_s * 2 / 15,
            clock=self._clock,
            rng=random.Random(seed),
        )

        informers = Informers(client, FORMS, rng=random.Random(seed + 3))
        jobs = self._training_jobs(client, informers, elector, identity, seed) if self._lines is not None else None

        shared = Shared(
            client=client,
            informers=informers,
            namespace=LEASE_NAMESPACE,
            identity=identity,
            elector=elector,
            clock=self._clock,
            rng=lambda name: random.Random(seed + 1 if name == "scheduler" else f"{seed} {name}"),
            registry=_METRICS,
        )
        works = works_of(
            shared,
            self._parts,
            settings=self._settings,
            jobs=jobs,
            muster_image="muster",
            providers=self._providers,
            step_image="steps",
        )
        async with asyncio.TaskGroup() as group:
            if jobs is not None:
                group.create_task(jobs.run())
            group.create_task(elector.run())
            for work in works:
                group.create_task(work)

    def _training_jobs(
        self, client: Client, informers: Informers, elector: LeaderElector, identity: str, seed: int
    ) -> TrainingJobController:
        """The controller of training jobs, and its face towards supervisors."""
        jobs = TrainingJobController(
            client,
            elector=elector,
            cluster_secret=b"simulated",
            pods=PODS,
            identity=identity,
            informers=informers,
            registry=_METRICS,
            clock=self._clock,
            rng=random.Random(seed + 2),
        )
        assert self._lines is not None
        assert self.process is not None
        server = RendezvousServer(jobs, jobs.members, pod_reviewer(client, self._clock))
        self._lines.listen(self.process, serve(server))
        return jobs

    def _clock(self) -> float:
        return self._cluster.loop.now + self._skew_s
