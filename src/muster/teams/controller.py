"""The shell of allocation: informers feed the holdings, decide makes a plan, nodes are written, and again."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry

from muster.api.names import TEAMS_CONFIG_MAP
from muster.api.placement import Placement
from muster.kube.client import Client
from muster.kube.clock import steady_time
from muster.kube.core import ConfigMap, Namespace, ObjectReference
from muster.kube.events import NORMAL, WARNING, EventRecorder
from muster.kube.health import Progress
from muster.kube.informer import Informer
from muster.kube.leader import Term
from muster.kube.meta import identity
from muster.kube.node import Node
from muster.kube.pod import Pod
from muster.teams.decide import decide
from muster.teams.holdings import Holdings
from muster.teams.metrics import teams_metrics
from muster.teams.plan import Caution, Change, Plan, Why
from muster.teams.record import NOBODY
from muster.teams.source import Source, source_of
from muster.teams.wellness import BROKEN_AFTER_S, HEALTHY_AFTER_S, Wellness, lean_node
from muster.teams.writing import WRITES_PER_S, NodeWriter

NAME = "teams"
SYNC_TIMEOUT_S = 120.0
IDLE_S = 15.0
"""A sign of life is given at least this often."""
PAUSE_S = 0.02
"""Events that come in a burst are decided about together."""

log = logging.getLogger(__name__)


class TeamsController:
    """Gives nodes to teams as the ConfigMap `muster-teams` says. Where there is none it follows nothing else.

    Args:
        client: the API server.
        namespace: where the ConfigMap is.
        identity: this process, in records and events.
        clock: seconds since the epoch.
        broken_after_s, healthy_after_s: see `wellness`.
        writes_per_s: pace of writes of nodes.
        request_timeout_s: deadline of one write; what a previous leader had under way is waited out for as long.
        progress: marked at each plan.
        rng: source of jitter.
        registry: where metrics go.
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
        progress: Progress | None = None,
        rng: random.Random | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self.plan = Plan()
        """The newest plan."""
        self._client = client
        self._namespace = namespace
        self._identity = identity
        self._clock = clock
        self._wellness_s = (broken_after_s, healthy_after_s)
        self._writes_per_s = writes_per_s
        self._request_timeout_s = request_timeout_s
        self._progress = progress
        self._rng = rng or random.Random()
        self._metrics = teams_metrics(registry)
        self._changed = asyncio.Event()
        self._source = Source()
        self._said: frozenset[Caution] = frozenset()

    async def run(self, *, term: Term | None = None) -> None:
        """Work until cancelled, as when the lease is lost.

        `term` is the time of leading: requests of a leader before it are waited out, then everything is listed anew.
        """
        if term is not None:
            await term.outwait(self._request_timeout_s, NAME)
        selector = f"metadata.name={TEAMS_CONFIG_MAP}"
        configs = Informer(
            self._client,
            ConfigMap,
            namespace=self._namespace,
            field_selector=selector,
            progress=self._progress,
            rng=self._rng,
        )
        found = asyncio.Event()

        def config_changed(old: ConfigMap | None, new: ConfigMap | None) -> None:
            self._source = source_of(new)
            if new is not None:
                found.set()
            self._changed.set()

        configs.add_handler(config_changed)
        async with EventRecorder(
            self._client, "muster-teams", instance=self._identity, clock=self._clock, rng=self._rng
        ) as events:
            await _together(configs.run(), self._allocate(found, events))

    async def _allocate(self, found: asyncio.Event, events: EventRecorder) -> None:
        """Wait for a ConfigMap and follow it; begin anew where its keys change, as labels are then read otherwise."""
        await found.wait()
        while True:
            allocation = _Allocation(self, events)
            await allocation.run()

    def _announce(self, events: EventRecorder, plan: Plan, begun: list[Change]) -> None:
        about = ObjectReference(api_version="v1", kind="ConfigMap", namespace=self._namespace, name=TEAMS_CONFIG_MAP)
        cautions = frozenset(plan.cautions)
        for each in plan.cautions:
            if each not in self._said:
                where = f"{each.pool}: " if each.pool else ""
                log.warning("teams: %s%s", where, each.message)
                events.event(about, WARNING, each.why, f"{where}{each.message}")
        self._said = cautions
        moved = Counter((change.previous, change.record.team) for change in begun if change.why is not Why.RESTORED)
        if moved:
            rest = "the rest"
            said = ", ".join(f"{n} from {old or rest} to {new or rest}" for (old, new), n in sorted(moved.items()))
            log.info("teams: nodes change hands: %s", said)
            events.event(about, NORMAL, "NodesMoved", f"nodes change hands: {said}")


class _Allocation:
    """Nodes, pods, namespaces and placements while the keys of the configuration stay the same."""

    def __init__(self, shell: TeamsController, events: EventRecorder) -> None:
        self._shell = shell
        self._events = events
        self._keys = _keys(shell._source)
        self._holdings = Holdings()
        self._wellness = Wellness(*shell._wellness_s)
        self._in_force: Source | None = None
        self._writer = NodeWriter(
            shell._client,
            self._holdings,
            changed=shell._changed.set,
            written=self._written,
            metrics=shell._metrics,
            rng=shell._rng,
            writes_per_s=shell._writes_per_s,
            request_timeout_s=shell._request_timeout_s,
        )
        self._configure()

    async def run(self) -> None:
        """Decide until the keys change."""
        shell = self._shell
        common: dict[str, Any] = {"progress": shell._progress, "rng": shell._rng}
        nodes = Informer(shell._client, Node, transform=lean_node, stored=identity, **common)
        pods = Informer(shell._client, Pod, stored=identity, **common)
        namespaces = Informer(shell._client, Namespace, stored=identity, **common)
        placements = Informer(shell._client, Placement, stored=identity, **common)
        nodes.add_handler(self._node_changed)
        pods.add_handler(self._pod_changed)
        namespaces.add_handler(self._namespace_changed)
        placements.add_handler(self._placement_changed)
        informers: list[Informer[Any]] = [nodes, pods, namespaces, placements]
        await _together(self._decide_on(informers), self._writer.run(), *(each.run() for each in informers))

    async def _decide_on(self, informers: list[Informer[Any]]) -> None:
        shell = self._shell
        async with asyncio.TaskGroup() as group:
            for informer in informers:
                group.create_task(informer.wait_synced(SYNC_TIMEOUT_S))
        if shell._progress is not None:
            shell._progress.expect(NAME, 6 * IDLE_S)
        try:
            while True:
                shell._changed.clear()
                if not self._configure():
                    return
                self._decide()
                if shell._progress is not None:
                    shell._progress.mark(NAME)
                await asyncio.sleep(PAUSE_S)
                wake_at = self._wellness.wake_at
                idle_s = IDLE_S if wake_at is None else min(IDLE_S, max(0.0, wake_at - shell._clock()))
                with suppress(TimeoutError):
                    async with asyncio.timeout(idle_s):
                        await shell._changed.wait()
        finally:
            if shell._progress is not None:
                shell._progress.drop(NAME)

    def _decide(self) -> None:
        shell, now = self._shell, self._shell._clock()
        for name, broken in self._wellness.due(now).items():
            self._holdings.set_broken(name, broken)
        started = time.perf_counter()
        plan = decide(self._holdings, now, shell._identity)
        shell._metrics.planned(plan, time.perf_counter() - started, now, config_ok=shell._source.ok)
        shell.plan = plan
        begun = self._writer.submit(plan.changes)
        shell._announce(self._events, plan, begun)

    def _configure(self) -> bool:
        """Take the newest configuration; False where its keys are others."""
        source = self._shell._source
        if source is not self._in_force:
            keys = _keys(source)
            if keys is not None and self._keys is not None and keys != self._keys:
                return False
            if keys is not None and self._keys is None and self._in_force is not None:
                return False  # pods were read without knowing by which key
            self._writer.clear()
            self._holdings.configure(source.config, source.caution)
            self._in_force = source
        return True

    def _written(self, change: Change, node: Node) -> None:
        if change.why is Why.RESTORED:
            owner = change.record.team or "nobody"
            log.info("teams: node %s: label and taint are put back, it is %s's", node.name, owner)
            self._events.event(node, WARNING, "TeamRestored", f"label and taint were changed by hand; {owner} owns it")

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            differs = self._holdings.set_node(new)
            differs |= self._holdings.set_broken(new.name, self._wellness.look(new, self._shell._clock()))
            if not differs:
                return  # a kubelet's sign of life
        elif old is not None:
            self._holdings.remove_node(old.name)
            self._wellness.forget(old.name)
        self._shell._changed.set()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if self._holdings.set_pod(new) if new is not None else old is not None and self._holdings.remove_pod(old.uid):
            self._shell._changed.set()

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        key = self._keys[1] if self._keys is not None else ""
        if new is not None:
            self._holdings.set_namespace(new.name, new.metadata.labels.get(key, NOBODY))
        elif old is not None:
            self._holdings.set_namespace(old.name, NOBODY)
        self._shell._changed.set()

    def _placement_changed(self, old: Placement | None, new: Placement | None) -> None:
        if new is not None:
            self._holdings.set_placement(new)
        elif old is not None:
            self._holdings.remove_placement(old.key)
        self._shell._changed.set()


def _keys(source: Source) -> tuple[str, str] | None:
    return (source.config.team_key, source.config.namespace_key) if source.config is not None else None


async def _together(*works: Coroutine[Any, Any, None]) -> None:
    """Run everything until the first ends, whose error is raised; the others are cancelled."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
