"""The balloon controller: feeds its cache to decide and executes the plan. It writes nothing in steady state."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec.structs import replace
from prometheus_client import REGISTRY, CollectorRegistry

from muster.api.names import LABEL_MANAGED_BY, MANAGED_BY
from muster.api.placement import Placement
from muster.api.trimmed import FORMS
from muster.fleet.balloons.cache import Occupancy
from muster.fleet.balloons.config import CONFIG_KEY, CONFIG_MAP, BalloonPool, parse_config
from muster.fleet.balloons.decide import decide
from muster.fleet.balloons.deployment import DELETION_COST, GOES_FIRST, LABEL_BALLOON_POOL, known, manifest
from muster.fleet.balloons.metrics import balloon_metrics
from muster.fleet.balloons.plan import Action, Drop, Mark, Put, Scale
from muster.fleet.balloons.snapshot import BalloonNode, Cap, View
from muster.fleet.nodes.node import read
from muster.kube.client import JSON_PATCH, Client
from muster.kube.clock import steady_time
from muster.kube.configmapsource import ConfigMapSource, config_map_informer, text_of
from muster.kube.errors import Invalid
from muster.kube.events import EventRecorder
from muster.kube.executor import Executor
from muster.kube.health import Progress
from muster.kube.informers import Informers
from muster.kube.leader import Term
from muster.kube.objects.apps import Deployment
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.resources import allocatable
from muster.kube.planloop import PlanLoop, Rest

log = logging.getLogger(__name__)

NAME = "balloons"
FENCE_S = 10.0
IDLE_S = 60.0
"""The longest time between two plans, as a sign of life."""
SETTLE_S = 0.1
"""Changes in a burst lead to one plan."""
_AGAIN_S = 1.0
"""The delay of the next plan after a write, until the cache shows it."""


class BalloonController:
    """Keeps the Deployments of balloons as the ConfigMap says and the nodes allow. Works only as leader.

    Args:
        client: the API server.
        namespace: the namespace of the ConfigMap and the Deployments.
        image: Muster's image, which balloons use unless the configuration names another.
        clock: seconds since the epoch.
        informers: shared with other controllers of this process; by default it has its own.
        progress: marked at each plan.
        rng: source of jitter.
        registry: receives the metrics.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        image: str,
        *,
        clock: Callable[[], float] = steady_time,
        informers: Informers | None = None,
        progress: Progress | None = None,
        rng: random.Random | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._image = image
        self._clock = clock
        self._progress = progress
        self._rng = rng or random.Random()
        self._informers = informers or Informers(client, FORMS, progress=progress, rng=self._rng)
        self._metrics = balloon_metrics(registry)
        self._loop = PlanLoop(NAME, fence_s=FENCE_S, stall_s=2 * IDLE_S, progress=progress)
        self._executor = Executor(NAME, at_once=1, timeout_s=FENCE_S)
        self._caps: dict[str, Cap] = {}

    async def run(self, term: Term | None = None) -> None:
        """Work until cancelled. First waits until requests of a leader before `term` have ended."""
        await self._loop.begin(term)
        self._occupancy = Occupancy(self._clock)
        self._nodes: dict[str, BalloonNode] = {}
        managed = f"{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_BALLOON_POOL}"
        events = EventRecorder(self._client, f"muster-{NAME}", clock=self._clock, rng=self._rng)
        self._config: ConfigMapSource[tuple[BalloonPool, ...]] = ConfigMapSource(
            config_map_informer(self._informers, self._namespace, CONFIG_MAP),
            lambda found: parse_config(text_of(found, CONFIG_KEY)),
            (),
            events=events,
            meanwhile="balloons stay as they are",
            changed=self._loop.wake,
        )
        self._deployments = self._informers.of(Deployment, namespace=self._namespace, label_selector=managed)
        nodes, pods = self._informers.of(Node), self._informers.of(Pod)
        placements = self._informers.of(Placement)
        self._deployments.add_handler(lambda old, new: self._loop.wake())
        nodes.add_handler(self._node_changed)
        pods.add_handler(lambda old, new: self._loop.wake(self._occupancy.pod_changed(old, new)))
        placements.add_handler(lambda old, new: self._loop.wake(self._occupancy.placement_changed(old, new)))
        async with events, asyncio.TaskGroup() as group:
            await self._loop.follow(group, self._config.informer, self._deployments, nodes, pods, placements)
            await self._loop.run(self._once)

    async def _once(self) -> Rest:
        """Plan and execute once."""
        self._metrics.config_broken.set(bool(self._config.problem))
        plan = decide(self._view(None if self._config.problem else self._config.value), self._clock())
        self._caps = dict(plan.caps)
        self._metrics.show(plan.pools)
        for action in plan.actions:
            await self._executor.run(type(action).__name__, partial(self._write, action))
        if plan.actions:
            return Rest(SETTLE_S, _AGAIN_S)
        return Rest.until(plan.wake_at, self._clock(), settle_s=SETTLE_S, idle_s=IDLE_S)

    def _view(self, pools: tuple[BalloonPool, ...] | None) -> View:
        occupancy = self._occupancy
        nodes = tuple(
            replace(node, taken=occupancy.taken(node.name), promised=occupancy.promised(node.name))
            for node in self._nodes.values()
        )
        deployments = {
            each.metadata.labels[LABEL_BALLOON_POOL]: known(each, self._image)
            for each in self._deployments.store.values()
        }
        return View(pools, nodes, tuple(occupancy.balloons.values()), deployments, self._caps)

    async def _write(self, action: Action) -> None:
        client = self._client
        if isinstance(action, Put):
            wanted = manifest(action.pool, action.replicas, self._namespace, self._image)
            if action.known is None:
                await client.create(wanted, kind=Deployment)
            else:
                await self._rewrite(action.known.name, action.known.uid, wanted)
            log.info("balloons of pool %s: %d", action.pool.name, action.replicas)
        elif isinstance(action, Mark):
            marked = action.balloon
            mark = {"metadata": {"uid": marked.uid, "annotations": {DELETION_COST: GOES_FIRST}}}
            await client.patch(Pod, marked.name, mark, namespace=marked.namespace)
        elif isinstance(action, Scale):
            patch = {"metadata": {"uid": action.known.uid}, "spec": {"replicas": action.replicas}}
            await client.patch(Deployment, action.known.name, patch, namespace=self._namespace)
            log.info("%s: %d balloons instead of %d", action.known.name, action.replicas, action.known.replicas)
        elif isinstance(action, Drop):
            await client.delete(
                Deployment, action.known.name, namespace=self._namespace, uid=action.known.uid, propagation="Background"
            )
        else:
            balloon = action.balloon
            await client.delete(Pod, balloon.name, namespace=balloon.namespace, uid=balloon.uid)
            log.info("balloon %s leaves node %s: %s", balloon.name, balloon.node, action.why)

    async def _rewrite(self, name: str, uid: str, wanted: dict[str, Any]) -> None:
        """Replace all that we write of a Deployment. A Deployment with another UID is not changed."""
        patch = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/metadata/annotations", "value": wanted["metadata"]["annotations"]},
            {"op": "replace", "path": "/spec/template", "value": wanted["spec"]["template"]},
            {"op": "replace", "path": "/spec/replicas", "value": wanted["spec"]["replicas"]},
        ]
        try:
            await self._client.patch(Deployment, name, patch, namespace=self._namespace, content_type=JSON_PATCH)
        except Invalid:  # a Deployment of another writer with that name: its selector cannot change
            await self._client.delete(Deployment, name, namespace=self._namespace, uid=uid, propagation="Background")

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        name = (new or old).name  # type: ignore[union-attr]
        before = self._nodes.pop(name, None)
        if new is not None:
            self._nodes[name] = read(BalloonNode, new, allocatable=allocatable(new))
        self._loop.wake(self._nodes.get(name) != before)
