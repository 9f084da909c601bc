"""The teams controller: watches the ConfigMap, and the other objects once it exists."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from prometheus_client import REGISTRY, CollectorRegistry

from muster.api.handover import Handover
from muster.api.names import TEAMS_CONFIG_MAP
from muster.api.trimmed import FORMS
from muster.kube.client import Client
from muster.kube.clock import steady_time
from muster.kube.configmapsource import config_map_informer
from muster.kube.events import EventRecorder
from muster.kube.health import Progress
from muster.kube.informers import Informers
from muster.kube.leader import Term
from muster.kube.objects.core import ConfigMap
from muster.kube.planloop import PlanLoop
from muster.teams.allocation import NAME, STALL_S, Allocation, Current, Settings, together
from muster.teams.executor import WRITES_PER_S
from muster.teams.metrics import teams_metrics
from muster.teams.node_health import BROKEN_AFTER_S, HEALTHY_AFTER_S
from muster.teams.plan import Plan
from muster.teams.source import source_of


class TeamsController:
    """Assigns nodes to teams by the ConfigMap `muster-teams`. Without it, the controller watches nothing else.

    Args:
        client: the API server.
        namespace: where the ConfigMap is.
        identity: name of this process in records and Events.
        clock: seconds since the epoch.
        broken_after_s, healthy_after_s: see `node_health.py`.
        writes_per_s: rate limit for writes of nodes.
        request_timeout_s: deadline of one write. A new leader also waits this long for the old leader's requests.
        handover: receives the nodes that will change teams soon.
        informers: shared with other controllers of this process; by default it has its own.
        progress: marked at each plan.
        rng: source of jitter.
        registry: registry for the metrics.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        identity: str,
        *,
        clock: Callable[[], float] = steady_time,
        broken_after_s: float = BROKEN_AFTER_S,
        healthy_after_s: float = HEALTHY_AFTER_S,
        writes_per_s: float = WRITES_PER_S,
        request_timeout_s: float = 10.0,
        handover: Handover | None = None,
        informers: Informers | None = None,
        progress: Progress | None = None,
        rng: random.Random | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        rng = rng or random.Random()
        self._settings = Settings(
            client=client,
            informers=informers or Informers(client, FORMS, progress=progress, rng=rng),
            namespace=namespace,
            identity=identity,
            clock=clock,
            broken_after_s=broken_after_s,
            healthy_after_s=healthy_after_s,
            writes_per_s=writes_per_s,
            request_timeout_s=request_timeout_s,
            progress=progress,
            rng=rng,
            metrics=teams_metrics(registry),
            handover=handover or Handover(),
        )
        loop = PlanLoop(NAME, fence_s=request_timeout_s, stall_s=STALL_S, progress=progress)
        self._current = Current(loop)

    @property
    def plan(self) -> Plan:
        """The newest plan."""
        return self._current.plan

    async def run(self, *, term: Term | None = None) -> None:
        """Work until cancelled, as when the lease is lost.

        With a `term`, it first waits for requests of the previous leader to end, then lists everything again.
        """
        settings, current = self._settings, self._current
        await current.loop.begin(term)
        configs = config_map_informer(settings.informers, settings.namespace, TEAMS_CONFIG_MAP)
        found = asyncio.Event()

        def config_changed(old: ConfigMap | None, new: ConfigMap | None) -> None:
            current.source = source_of(new)
            if new is not None:
                found.set()
            current.loop.wake()

        configs.add_handler(config_changed)
        async with EventRecorder(
            settings.client, "muster-teams", instance=settings.identity, clock=settings.clock, rng=settings.rng
        ) as events:
            await together(configs.run(current.loop.since), self._allocate(found, events))

    async def _allocate(self, found: asyncio.Event, events: EventRecorder) -> None:
        """Wait for a ConfigMap and allocate by it; restart when its label keys change."""
        await found.wait()
        while True:
            await Allocation(self._settings, self._current, events).run()
