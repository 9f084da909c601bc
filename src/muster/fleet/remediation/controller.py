"""The remediation controller: follows nodes and their findings, decides, and executes plans while it leads."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from prometheus_client import REGISTRY, CollectorRegistry

from muster.api.handover import Handover
from muster.api.names import HEALTH_CONFIG_MAP, HEALTH_POLICY_KEY, LABEL_TEAM
from muster.api.node_health import NodeHealth
from muster.api.node_remediation import NodeRemediation
from muster.api.placement import Placement
from muster.api.preflight import Preflight
from muster.api.trimmed import FORMS
from muster.fleet.health.policy import Policy
from muster.fleet.health.policytext import default_policy, read_policy
from muster.fleet.providers.aws import AutoScalingGroups
from muster.fleet.providers.base import Provider
from muster.fleet.remediation.cache import Known
from muster.fleet.remediation.config import CONFIG_KEY, RemediationConfig, parse_config
from muster.fleet.remediation.decide import decide
from muster.fleet.remediation.draining.drain import candidates, drains
from muster.fleet.remediation.draining.evictions import Evictions
from muster.fleet.remediation.evidence.dead_nodes import Death, dead, suspects, witnesses
from muster.fleet.remediation.evidence.mesh import Mesh, members_of, text_of
from muster.fleet.remediation.executor import NAME, Carrier
from muster.fleet.remediation.ladder.record import is_quarantined
from muster.fleet.remediation.ladder.rungs import WORKING
from muster.fleet.remediation.lookups import Looker
from muster.fleet.remediation.metrics import remediation_metrics
from muster.fleet.remediation.plan import Plan
from muster.fleet.remediation.repairs.replacement import ByProvider, Replacer
from muster.fleet.remediation.repairs.steps import LABEL_STEP, StepSettings
from muster.fleet.remediation.snapshot import View
from muster.fleet.scaling.config import CONFIG_MAP as SCALING_CONFIG_MAP
from muster.kube.client import Client
from muster.kube.clock import steady_time
from muster.kube.configmapsource import ConfigMapSource, config_map_informer
from muster.kube.events import EventRecorder
from muster.kube.health import Progress
from muster.kube.informers import Informers, SharedInformer
from muster.kube.leader import Term
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.planloop import PlanLoop, Rest

C = TypeVar("C")

FENCE_S = 10.0
"""Requests of the previous leader take effect within this time or never (`lookups.REQUEST_TIMEOUT_S`)."""
STALL_S = 120.0
IDLE_S = 5.0
"""The longest time between two plans if nothing changes."""
BUSY_S = 1.0
"""The same while nodes are drained or may be dead: pods and Leases are polled, not watched."""
PAUSE_S = 0.05
MESH_S = 5.0
"""The shortest time between two evaluations of the mesh and writes of its members."""
FOUND_DEAD = "its Lease has not been renewed since it was found dead"
"""The reason why a node is dead if a previous leader found it dead."""
SPARES_LOOKED_AT = 16
"""How many nodes are checked for one spare, at most."""


class RemediationController:
    """Takes faulty nodes out of use and returns them.

    Args:
        client: the API server.
        namespace: the namespace of the ConfigMap and of the pods that act on machines.
        step_image: the image of those pods.
        handover: receives the reserved spare nodes and the gangs that are being evicted.
        providers: machine providers by name, in addition to `aws`.
        replacer: replaces machines, instead of the providers.
        team_key: label that names a node's team.
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
        *,
        step_image: str = "muster",
        handover: Handover | None = None,
        providers: Mapping[str, Provider] | None = None,
        replacer: Replacer | None = None,
        team_key: str = LABEL_TEAM,
        clock: Callable[[], float] = steady_time,
        informers: Informers | None = None,
        progress: Progress | None = None,
        rng: random.Random | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._steps = StepSettings(namespace=namespace, image=step_image)
        self._handover = handover or Handover()
        self._providers: Mapping[str, Provider] = {"aws": AutoScalingGroups(), **(providers or {})}
        self._by_provider = ByProvider(self._providers, client.require_leading)
        self._replacer: Replacer = replacer or self._by_provider
        self._team_key = team_key
        self._clock = clock
        self._progress = progress
        self._rng = rng or random.Random()
        self._informers = informers or Informers(client, FORMS, progress=progress, rng=self._rng)
        self._metrics = remediation_metrics(registry)
        self._loop = PlanLoop(NAME, fence_s=FENCE_S, stall_s=STALL_S, progress=progress)

    async def run(self, term: Term | None = None) -> None:
        """Work until cancelled. First waits until requests of a leader before `term` have ended."""
        await self._loop.begin(term)
        changed = self._loop.wake
        self.known = Known(changed, self._team_key)
        evictions = Evictions(self._client, self._clock, changed=changed, outcomes=self._metrics.actions)
        self._looker = Looker(self._client, self._clock, evictions, namespace=self._namespace)
        self._mesh, self._mesh_at, self._members = Mesh(), float("-inf"), ""
        self._dead: dict[str, Death] = {}
        self._suspected: frozenset[str] = frozenset()
        self._events = EventRecorder(self._client, f"muster-{NAME}", clock=self._clock, rng=self._rng)
        health = config_map_informer(self._informers, self._namespace, HEALTH_CONFIG_MAP)
        self._policy = self._source(health, HEALTH_POLICY_KEY, _policy_of, default_policy())
        self._config = self._source(health, CONFIG_KEY, _config_of, RemediationConfig())
        scaling = config_map_informer(self._informers, self._namespace, SCALING_CONFIG_MAP)
        scaling.add_handler(self._by_provider.config_changed)
        informers, known = self._informers, self.known
        steps = informers.of(Pod, namespace=self._namespace, label_selector=LABEL_STEP)
        followed: list[tuple[SharedInformer[Any], Any]] = [
            (informers.of(Node), known.node_changed),
            (informers.of(NodeHealth), known.health_changed),
            (informers.of(Preflight), known.preflight_changed),
            (informers.of(NodeRemediation), known.session_changed),
            (informers.of(Placement), known.placement_changed),
            (steps, known.step_changed),
        ]
        self._carrier = Carrier(
            self._client,
            self.known,
            self._looker,
            evictions,
            steps=self._steps,
            replacer=self._replacer,
            events=self._events,
            metrics=self._metrics,
            namespace=self._namespace,
            clock=self._clock,
            rng=self._rng,
        )
        async with self._events, evictions, asyncio.TaskGroup() as group:
            await self._loop.follow(group, health)
            for informer, handler in followed:
                informer.add_handler(handler)
            await self._loop.follow(group, *(informer for informer, _ in followed), scaling)
            try:
                await self._loop.run(self._once)
            finally:
                self._handover.keep({})
                for provider in self._providers.values():
                    await provider.close()

    def _source(
        self,
        informer: SharedInformer[ConfigMap],
        key: str,
        read: Callable[[ConfigMap | None], C],
        value: C,
    ) -> ConfigMapSource[C]:
        return ConfigMapSource(
            informer,
            read,
            value,
            events=self._events,
            meanwhile=f"remediation keeps its configuration: {key}",
            changed=self._config_changed,
        )

    async def _once(self) -> Rest:
        """Plan and execute once."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        news_count = self.known.news_count
        view = await self._view()
        plan = decide(view, self._clock())
        settle_s = max(PAUSE_S, loop.time() - started)
        self._handover.keep(plan.kept, plan.going)
        again = any(await asyncio.gather(self._carrier.carry_out(plan, news_count), self._look_for_spares(view, plan)))
        self._metrics.show(view.sessions, plan.held)
        if again:
            return Rest(settle_s, 0.0)
        idle_s = BUSY_S if view.pods or self._looker.silences else IDLE_S
        return Rest.until(plan.wake_at, self._clock(), settle_s=settle_s, idle_s=idle_s)

    async def _look_at_mesh(self) -> None:
        """Evaluate what agents report of each other, and write the list of members for them."""
        now = asyncio.get_running_loop().time()
        if now - self._mesh_at < MESH_S:
            return
        self._mesh_at = now
        members = members_of(self.known.raw.values())
        self.known.heard(self._mesh.judge(members, self.known.said, self._clock()))
        text = text_of(members)
        if text and text != self._members and await self._carrier.write_members(text):
            self._members = text

    async def _view(self) -> View:
        known, config = self.known, self._config.value
        await self._look_at_mesh()
        acts = config.mode == "act" and not config.pause
        emptied = drains(known.sessions.values(), known.nodes) if acts else {}
        await self._looker.at_pods(emptied)
        now = self._clock()
        known.judge(self._policy.value, now)
        out = {each.spec.node for each in known.sessions.values() if is_quarantined(each.status)}
        doubted = suspects(known.reports, known.nodes.keys() - out, config.dead) if acts else ()
        # A node that was found dead stays dead while it is drained, until its Lease is renewed.
        before = self._dead_before()
        watched = before.keys() | (self._suspected & self._under_way())
        gone = sorted({*doubted, *(watched & known.nodes.keys())})
        self._suspected = frozenset(gone)
        await self._looker.at_leases([*gone, *(witnesses(gone, known.nodes) if doubted else ())])
        known.judge(self._policy.value, self._clock())  # nodes may have been replaced while the Leases were read
        self._dead = dead(gone, self._looker.silences, known.reports, self._clock(), config.dead, before)
        return View(
            config=config,
            nodes=dict(known.nodes),
            sessions=dict(known.sessions),
            evidence=known.evidence,
            tested=known.tested,
            cleared=known.cleared,
            dead={name: each.why for name, each in self._dead.items()},
            renewed={name: each.renewed_s for name, each in self._dead.items()},
            pods=self._looker.pods,
            steps=known.steps,
            gangs=known.gangs,
            free=self._looker.free,
            replaceable=frozenset(name for name in out if name in known.raw and self._replacer.can(known.raw[name])),
        )

    def _dead_before(self) -> dict[str, Death]:
        """Return the nodes on their way out of use that this leader or a previous one found dead."""
        under_way = self._under_way()
        found = {}
        for session in self.known.sessions.values():
            name, renewed = session.spec.node, session.status.silent_since
            node = self.known.nodes.get(name)
            if renewed is not None and name in under_way and node is not None and node.uid == session.spec.node_uid:
                found[name] = self._dead.get(name) or Death(FOUND_DEAD, renewed.timestamp())
        return found

    def _under_way(self) -> set[str]:
        """Return the nodes on their way out of use, for which it matters whether they are alive."""
        rungs = ("Quarantine", *WORKING)
        open_ = (each for each in self.known.sessions.values() if each.status.state == "Open")
        return {each.spec.node for each in open_ if each.status.rung in rungs}

    async def _look_for_spares(self, view: View, plan: Plan) -> bool:
        """Return whether an empty node was found that was not known before."""
        if not plan.spares_for:
            return False
        most = SPARES_LOOKED_AT * sum(len(nodes) for nodes in plan.spares_for.values())
        return await self._looker.for_free(candidates(view, plan.spares_for, most))

    def _config_changed(self) -> None:
        self._metrics.config_broken.set(bool(self._config.problem or self._policy.problem))
        self.known.judge_all()


def _config_of(found: ConfigMap | None) -> RemediationConfig:
    return parse_config(found.data.get(CONFIG_KEY, "") if found is not None else "")


def _policy_of(found: ConfigMap | None) -> Policy:
    text = found.data.get(HEALTH_POLICY_KEY, "") if found is not None else ""
    return read_policy(text, f"{HEALTH_CONFIG_MAP}/{HEALTH_POLICY_KEY}") if text else default_policy()
