"""The controller of the uplink's budget: allocates while this process leads, and sends rates through the hub.

It writes nothing to the API server in steady state: demand and rates live in memory, and a new leader collects them
again from the agents.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping

from prometheus_client import REGISTRY, CollectorRegistry

from muster.api.names import LABEL_TEAM
from muster.api.trimmed import FORMS
from muster.kube.client import Client
from muster.kube.clock import steady_time
from muster.kube.configmapsource import ConfigMapSource, config_map_informer, text_of
from muster.kube.events import EventRecorder
from muster.kube.informers import Informers
from muster.kube.leader import Term
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.planloop import PlanLoop, Rest
from muster.kube.progress import Progress
from muster.network.config import CONFIG_KEY, CONFIG_MAP, parse_config
from muster.network.localpods.identity import local_pod
from muster.network.uplink.allocation import Allocation
from muster.network.uplink.cache import Owner, UplinkCache
from muster.network.uplink.config import UplinkConfig
from muster.network.uplink.hub import Hub
from muster.network.uplink.metrics import uplink_metrics
from muster.network.uplink.settings import settings_of

log = logging.getLogger(__name__)

NAME = "uplink"
FENCE_S = 2.0
"""The previous leader checks that it leads before each plan, and its connections end with its term."""
STALL_S = 60.0


class UplinkController:
    """Shares the uplink's budget. Works only as leader.

    Args:
        client: the API server.
        namespace: the namespace of the ConfigMap.
        hub: the connections of agents. It is open while this controller works and the budget is enabled.
        clock: seconds since the epoch.
        monotonic: monotonic seconds, the hub's clock.
        cpu: CPU seconds of this thread.
        informers: shared with other controllers of this process; by default it has its own.
        team_key: label of pods that names their team.
        progress: marked after each plan.
        rng: source of the epoch's name, and of jitter.
        registry: receives the metrics.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        hub: Hub,
        *,
        clock: Callable[[], float] = steady_time,
        monotonic: Callable[[], float] = time.monotonic,
        cpu: Callable[[], float] = time.thread_time,
        informers: Informers | None = None,
        team_key: str = LABEL_TEAM,
        progress: Progress | None = None,
        rng: random.Random | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._client, self._namespace, self._hub = client, namespace, hub
        self._clock, self._monotonic, self._cpu, self._team_key = clock, monotonic, cpu, team_key
        self._rng = rng or random.Random()
        self._informers = informers or Informers(client, FORMS, progress=progress, rng=self._rng)
        self._metrics = uplink_metrics(registry)
        self._loop = PlanLoop(NAME, fence_s=FENCE_S, stall_s=STALL_S, progress=progress)
        self._config = UplinkConfig()
        self._allocation: Allocation | None = None
        self._pods: dict[str, Owner] = {}
        self._nodes: dict[str, Mapping[str, str]] = {}
        self._term = 0

    async def run(self, term: Term | None = None) -> None:
        """Work until cancelled. First waits until rates of a leader before `term` are on their way no more."""
        await self._loop.begin(term)
        self._term = term.transitions if term is not None else 0
        events = EventRecorder(self._client, f"muster-{NAME}", clock=self._clock, rng=self._rng)
        self._source = ConfigMapSource(
            config_map_informer(self._informers, self._namespace, CONFIG_MAP),
            lambda found: parse_config(text_of(found, CONFIG_KEY)).uplink,
            self._config,
            events=events,
            meanwhile="the uplink's budget stays as it is",
            changed=self._config_changed,
        )
        nodes, pods = self._informers.of(Node), self._informers.of(Pod)
        nodes.add_handler(self._node_changed)
        pods.add_handler(self._pod_changed)
        try:
            async with events, asyncio.TaskGroup() as group:
                await self._loop.follow(group, self._source.informer, nodes, pods)
                self._source.settle()
                self._config_changed()
                await self._loop.run(self._plan)
        finally:
            self._stop(off=False)
            self._pods.clear()
            self._nodes.clear()

    async def _plan(self) -> Rest:
        """Share the budget once. Without a budget, wait for one."""
        if self._allocation is None:
            return Rest(0.0, STALL_S / 2)
        return await self._allocation.plan()

    def _config_changed(self) -> None:
        config = self._source.value
        self._metrics.config_broken.set(bool(self._source.problem))
        if not self._source.informer.has_synced:
            return
        self._config = config
        if not config.enabled:
            self._stop(off=True)
            return
        if self._allocation is not None:
            self._allocation.cache.configure(settings_of(config))
        else:
            self._start(config)
        self._select_nodes()
        self._loop.wake()

    def _start(self, config: UplinkConfig) -> None:
        # A budget that is turned off and on again begins like a new leader.
        epoch = f"{self._term}-{self._rng.getrandbits(64):016x}"
        cache = UplinkCache(settings_of(config), self._monotonic())
        for uid, owner in self._pods.items():
            cache.pod_changed(uid, owner)
        log.info("uplink: sharing the budget, epoch %s", epoch)
        self._allocation = Allocation(
            cache,
            self._hub,
            epoch,
            self._loop.wake,
            self._metrics,
            clock=self._monotonic,
            cpu=self._cpu,
        )

    def _stop(self, *, off: bool) -> None:
        if self._allocation is not None:
            self._allocation.end(off=off)
        else:
            self._hub.close(off=off)
        self._allocation = None

    def _select_nodes(self) -> None:
        for name in self._nodes:
            self._select_node(name)

    def _select_node(self, name: str) -> None:
        if self._allocation is None:
            return
        labels = self._nodes.get(name)
        selector = self._config.node_selector.items()
        expected = labels is not None and all(labels.get(key) == value for key, value in selector)
        self._allocation.cache.node_changed(name, expected, self._monotonic())

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            self._nodes[new.name] = new.metadata.labels
            if old is None or old.metadata.labels != new.metadata.labels:
                self._select_node(new.name)
        elif old is not None:
            self._nodes.pop(old.name, None)
            self._select_node(old.name)

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        pod = new or old
        if pod is None or not pod.uid:
            return
        owner = _owner(new, self._team_key) if new is not None else None
        if owner is None:
            self._pods.pop(pod.uid, None)
        else:
            self._pods[pod.uid] = owner
        if self._allocation is not None:
            self._allocation.cache.pod_changed(pod.uid, owner)


def _owner(pod: Pod, team_key: str) -> Owner | None:
    """Return whose a pod is; None if it has no node yet, or has ended."""
    if not pod.spec.node_name or pod.status.phase in ("Succeeded", "Failed"):
        return None
    known = local_pod(pod, team_key)
    return Owner(pod.spec.node_name, known.namespace, known.name, known.job, known.team, known.priority)
