"""Assigns nodes to teams as long as the label keys stay the same: watches objects, decides, and writes nodes."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from muster.api.handover import Handover
from muster.api.names import TEAMS_CONFIG_MAP
from muster.api.placement import Placement
from muster.kube.client import Client
from muster.kube.events import NORMAL, WARNING, EventRecorder
from muster.kube.health import Progress
from muster.kube.informers import Informers, SharedInformer
from muster.kube.objects.core import Namespace, ObjectReference
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.planloop import PlanLoop, Rest, complete
from muster.teams.cache import Holdings
from muster.teams.decide import decide
from muster.teams.executor import NodeWriter
from muster.teams.metrics import TeamsMetrics
from muster.teams.node_health import Wellness
from muster.teams.plan import Caution, Change, Plan, Why
from muster.teams.record import UNOWNED
from muster.teams.source import Source

NAME = "teams"
STALL_S = 60.0
IDLE_S = 15.0
"""Longest time between two plans. A plan shows that the controller is alive."""
PAUSE_S = 0.02
"""Batches a burst of events into one plan."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Fixed settings of a controller; see `TeamsController`."""

    client: Client
    informers: Informers
    namespace: str
    identity: str
    clock: Callable[[], float]
    broken_after_s: float
    healthy_after_s: float
    writes_per_s: float
    request_timeout_s: float
    progress: Progress | None
    rng: random.Random
    metrics: TeamsMetrics
    handover: Handover


class Current:
    """Mutable state: the configuration in force, the newest plan, and the loop that plans."""

    def __init__(self, loop: PlanLoop) -> None:
        self.source = Source()
        self.plan = Plan()
        self.loop = loop
        self.reported: frozenset[Caution] = frozenset()


class Allocation:
    """Decides and writes nodes until the label keys of the configuration change.

    Args:
        settings: of the controller.
        current: shared mutable state.
        events: recorder for Events.
    """

    def __init__(self, settings: Settings, current: Current, events: EventRecorder) -> None:
        self._settings = settings
        self._current = current
        self._events = events
        self._keys = _keys(current.source)
        self._holdings = Holdings()
        self._wellness = Wellness(settings.broken_after_s, settings.healthy_after_s)
        self._in_force: Source | None = None
        self._writer = NodeWriter(
            settings.client,
            self._holdings,
            changed=current.loop.wake,
            written=self._written,
            metrics=settings.metrics,
            rng=settings.rng,
            writes_per_s=settings.writes_per_s,
            request_timeout_s=settings.request_timeout_s,
        )
        self._configure()

    async def run(self) -> None:
        """Decide until the label keys change."""
        settings = self._settings
        nodes, pods = settings.informers.of(Node), settings.informers.of(Pod)
        namespaces, placements = settings.informers.of(Namespace), settings.informers.of(Placement)
        nodes.add_handler(self._node_changed)
        pods.add_handler(self._pod_changed)
        namespaces.add_handler(self._namespace_changed)
        placements.add_handler(self._placement_changed)
        informers: list[SharedInformer[Any]] = [nodes, pods, namespaces, placements]
        since = self._current.loop.since
        await together(self._decide_on(informers), self._writer.run(), *(each.run(since) for each in informers))

    async def _decide_on(self, informers: list[SharedInformer[Any]]) -> None:
        await complete(NAME, *informers)
        try:
            await self._current.loop.run(self._once)
        finally:
            self._settings.handover.set_nodes(frozenset())

    async def _once(self) -> Rest | None:
        if not self._configure():
            return None
        self._decide()
        return Rest.until(self._wellness.wake_at, self._settings.clock(), settle_s=PAUSE_S, idle_s=IDLE_S)

    def _decide(self) -> None:
        settings, now = self._settings, self._settings.clock()
        for name, broken in self._wellness.due(now).items():
            self._holdings.set_broken(name, broken)
        started = time.perf_counter()
        plan = decide(self._holdings, now, settings.identity)
        settings.metrics.planned(plan, time.perf_counter() - started, now, config_ok=self._current.source.ok)
        self._current.plan = plan
        settings.handover.set_nodes(plan.leaving - self._writer.failing)
        begun = self._writer.submit(plan.changes)
        self._announce(plan, begun)

    def _announce(self, plan: Plan, begun: list[Change]) -> None:
        about = ObjectReference(
            api_version="v1", kind="ConfigMap", namespace=self._settings.namespace, name=TEAMS_CONFIG_MAP
        )
        cautions = frozenset(plan.cautions)
        for each in plan.cautions:
            if each not in self._current.reported:
                where = f"{each.pool}: " if each.pool else ""
                log.warning("teams: %s%s", where, each.message)
                self._events.event(about, WARNING, each.why, f"{where}{each.message}")
        self._current.reported = cautions
        moved = Counter((change.previous, change.record.team) for change in begun if change.why is not Why.RESTORED)
        if moved:
            rest = "the rest"
            moves = ", ".join(f"{n} from {old or rest} to {new or rest}" for (old, new), n in sorted(moved.items()))
            log.info("teams: nodes change hands: %s", moves)
            self._events.event(about, NORMAL, "NodesMoved", f"nodes change hands: {moves}")

    def _configure(self) -> bool:
        """Apply the newest configuration; return False if its label keys differ."""
        source = self._current.source
        if source is not self._in_force:
            keys = _keys(source)
            if keys is not None and self._keys is not None and keys != self._keys:
                return False
            if keys is not None and self._keys is None and self._in_force is not None:
                return False  # pods were read before the label key was known
            self._writer.clear()
            self._holdings.configure(source.config, source.caution)
            self._in_force = source
        return True

    def _written(self, change: Change, node: Node) -> None:
        if change.why is Why.RESTORED and change.former_key == change.record.key:
            owner = f"team {change.record.team}" if change.record.team else "no team"
            log.info("teams: node %s: label and taint are restored, as %s owns it", node.name, owner)
            self._events.event(node, WARNING, "TeamRestored", f"label and taint were changed by hand; {owner} owns it")

    def _node_changed(self, old: Node | None, new: Node | None) -> None:
        if new is not None:
            before = self._wellness.wake_at
            differs = self._holdings.set_node(new)
            differs |= self._holdings.set_broken(new.name, self._wellness.look(new, self._settings.clock()))
            if not differs and self._wellness.wake_at == before:
                return  # a kubelet heartbeat
        elif old is not None:
            self._holdings.remove_node(old.name)
            self._wellness.forget(old.name)
        self._current.loop.wake()

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if self._holdings.set_pod(new) if new is not None else old is not None and self._holdings.remove_pod(old.uid):
            self._current.loop.wake()

    def _namespace_changed(self, old: Namespace | None, new: Namespace | None) -> None:
        key = self._keys[1] if self._keys is not None else ""
        if new is not None:
            self._holdings.set_namespace(new.name, new.metadata.labels.get(key, UNOWNED))
        elif old is not None:
            self._holdings.set_namespace(old.name, UNOWNED)
        self._current.loop.wake()

    def _placement_changed(self, old: Placement | None, new: Placement | None) -> None:
        if new is not None:
            self._holdings.set_placement(new)
        elif old is not None:
            self._holdings.remove_placement(old.key)
        self._current.loop.wake()


def _keys(source: Source) -> tuple[str, str] | None:
    return (source.config.team_key, source.config.namespace_key) if source.config is not None else None


async def together(*works: Coroutine[Any, Any, None]) -> None:
    """Run all coroutines until the first ends; raise its error and cancel the others."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
