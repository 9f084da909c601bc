"""The preflight controller: feeds its cache to decide and executes the plan. It writes nothing in steady state."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from msgspec.structs import replace
from prometheus_client import REGISTRY, CollectorRegistry

from muster.api.names import HEALTH_CONFIG_MAP, HEALTH_POLICY_KEY, LABEL_PREFLIGHT, LABEL_TEAM
from muster.api.node_health import NodeHealth
from muster.api.node_remediation import NodeRemediation
from muster.api.placement import Placement
from muster.api.preflight import Preflight, last_pass
from muster.api.trimmed import FORMS
from muster.api.trust import doubt, has_gpus, identity, is_ignored, tested
from muster.fleet.health.policyinuse import PolicyInUse
from muster.fleet.preflight.cache import PENDING, Knowledge
from muster.fleet.preflight.comparison import compare
from muster.fleet.preflight.config import CONFIG_KEY, CONFIG_MAP, PreflightConfig, parse_config
from muster.fleet.preflight.decide import decide
from muster.fleet.preflight.events import Teller
from muster.fleet.preflight.metrics import preflight_metrics
from muster.fleet.preflight.plan import Accept, Action, PutTaint, Remove, Revoke, Start, TakeTaint
from muster.fleet.preflight.refusals import after_starts, refusal_of
from muster.fleet.preflight.testpod import TestRecord, made_with, manifest
from muster.kube.client import Client
from muster.kube.clock import steady_time
from muster.kube.configmapsource import ConfigMapSource, config_map_informer, text_of
from muster.kube.errors import ApiError, NotFound
from muster.kube.events import EventRecorder
from muster.kube.executor import Executor, WriteOutcome
from muster.kube.health import Progress
from muster.kube.informers import Informers, SharedInformer
from muster.kube.leader import Term
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta, OwnerReference
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.resources import allocatable
from muster.kube.objects.taints import NodeChange
from muster.kube.planloop import PlanLoop, Rest
from muster.kube.taintwriter import TaintWriter

log = logging.getLogger(__name__)

NAME = "preflight"
FENCE_S = 10.0
IDLE_S = 60.0
"""The longest time between two plans, for changes by time alone and as a sign of life."""
SETTLE_S = 0.1
"""Changes in a burst lead to one plan."""
WRITERS = 16
"""Requests in flight."""
_AGAIN_S = 1.0
"""The delay of the next plan after writes, until the cache shows them."""
_OWNED = ((PENDING.key, PENDING.effect),)


class PreflightController:
    """Tests nodes as the ConfigMap `muster-preflight` says, and keeps their records. Works only as leader.

    Args:
        client: the API server.
        namespace: the namespace of the ConfigMap and of the tests.
        image: Muster's image, used if the configuration does not name another.
        team_key: key of the taint of nodes that a team owns.
        clock: seconds since the epoch.
        informers: shared with other controllers of this process; by default it has its own.
        progress: marked at each look.
        rng: source of jitter.
        registry: receives the metrics.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        image: str,
        *,
        team_key: str = LABEL_TEAM,
        clock: Callable[[], float] = steady_time,
        informers: Informers | None = None,
        progress: Progress | None = None,
        rng: random.Random | None = None,
        registry: CollectorRegistry = REGISTRY,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._image = image
        self._team_key = team_key
        self._clock = clock
        self._progress = progress
        self._rng = rng or random.Random()
        self._informers = informers or Informers(client, FORMS, progress=progress, rng=self._rng)
        self._metrics = preflight_metrics(registry)
        self._writer = TaintWriter(client, _OWNED, field_manager=f"muster-{NAME}", rng=self._rng)
        self._loop = PlanLoop(NAME, fence_s=FENCE_S, stall_s=2 * IDLE_S, progress=progress)
        self._executor = Executor(NAME, at_once=WRITERS, timeout_s=FENCE_S)

    async def run(self, term: Term | None = None) -> None:
        """Work until cancelled. First waits until requests of a leader before `term` have ended."""
        await self._loop.begin(term)
        self._known = known = Knowledge(self._namespace, self._team_key)
        events = EventRecorder(self._client, f"muster-{NAME}", clock=self._clock, rng=self._rng)
        self._teller = Teller(events)
        self._config: ConfigMapSource[PreflightConfig | None] = ConfigMapSource(
            config_map_informer(self._informers, self._namespace, CONFIG_MAP),
            lambda found: parse_config(text_of(found, CONFIG_KEY)) if found is not None else None,
            None,
            events=events,
            meanwhile="tests keep the last valid configuration",
            changed=self._loop.wake,
        )
        health = config_map_informer(self._informers, self._namespace, HEALTH_CONFIG_MAP)
        health.add_handler(self._policy_changed)
        informers: list[SharedInformer[Any]] = [self._config.informer, health]

        def follow(informer: SharedInformer[Any], hear: Callable[[Any, Any], bool]) -> None:
            informer.add_handler(lambda old, new: self._loop.wake(hear(old, new)))
            informers.append(informer)

        tests = self._informers.of(Pod, namespace=self._namespace, label_selector=LABEL_PREFLIGHT)
        follow(self._informers.of(Node), known.node_changed)
        follow(self._informers.of(Pod), known.pod_changed)
        follow(self._informers.of(Placement), known.placement_changed)
        follow(tests, known.test_changed)
        follow(self._informers.of(Preflight), known.record_changed)
        follow(self._informers.of(NodeHealth), known.health_changed)
        follow(self._informers.of(NodeRemediation), known.session_changed)
        async with events, asyncio.TaskGroup() as group:
            await self._loop.follow(group, *informers)
            group.create_task(compare(known, self._teller, self._metrics, self._loop.wake))
            await self._loop.run(self._once)

    async def _once(self) -> Rest:
        """Plan and execute once."""
        began = time.perf_counter()
        config = self._config.value
        self._metrics.config_broken.set(bool(self._config.problem))
        plan = decide(self._known.view(config), self._clock())
        self._known.attempts = plan.attempts
        self._metrics.show(plan.states)
        said = await asyncio.gather(*(self._carry_out(action, config) for action in plan.actions))
        if config is not None:
            self._remember(list(zip(plan.actions, said, strict=True)), config)
        settle_s = max(SETTLE_S, 2 * (time.perf_counter() - began))
        if plan.actions:
            return Rest(settle_s, _AGAIN_S)
        return Rest.until(plan.wake_at, self._clock(), settle_s=settle_s, idle_s=IDLE_S)

    def _remember(self, outcomes: Sequence[tuple[Action, str | None]], config: PreflightConfig) -> None:
        """Remember the outcome of tests that were to be created, and report the refused ones."""
        starts = [(action, why) for action, why in outcomes if isinstance(action, Start) and why is not None]
        known = self._known
        known.refused, known.attempts = after_starts(
            starts, known.refused, known.attempts, self._clock(), made_with(config)
        )
        for start, why in starts:
            if why:
                log.warning("preflight: the test of node %s cannot be made: %s", start.node, why)
                self._teller.refused(start.node, start.identity.node_uid, why)
                self._metrics.results.labels(str(start.level), "refused").inc()

    async def _carry_out(self, action: Action, config: PreflightConfig | None) -> str | None:
        """Execute an action. Returns why it is refused, "" if it was done, None if that is not known."""
        result = await self._executor.run(type(action).__name__, partial(self._write, action, config))
        if result.outcome is WriteOutcome.DONE:
            return ""
        error = result.error
        return (refusal_of(error) or None) if isinstance(action, Start) and isinstance(error, ApiError) else None

    async def _write(self, action: Action, config: PreflightConfig | None) -> None:
        if isinstance(action, Start):
            assert config is not None
            await self._start(action, config)
        elif isinstance(action, Accept):
            await self._accept(action)
        elif isinstance(action, Remove):
            await self._remove(action)
        elif isinstance(action, Revoke):
            await self._revoke(action)
        elif isinstance(action, PutTaint):
            await self._writer.write(action.node, self._taint_wanted)
        else:
            assert isinstance(action, TakeTaint)
            await self._writer.write(action.node, self._taint_unwanted)

    async def _start(self, action: Start, config: PreflightConfig) -> None:
        own = action.identity
        made_for = TestRecord(action.node, own.node_uid, own.boot_id, action.level, config.backend, made_with(config))
        pod = manifest(
            made_for,
            action.gpus,
            config,
            namespace=self._namespace,
            image=self._image,
            team_key=self._team_key,
            retest=action.retest,
        )
        await self._client.create(pod, kind=Pod)
        log.info("preflight: node %s is tested, level %d", action.node, action.level)

    async def _accept(self, action: Accept) -> None:
        """Write the record, then delete the pod. After a crash in between, only the deletion is left to do."""
        name, spec = action.test.node, action.record
        known = self._known.records.get(name)
        owner = OwnerReference(api_version="v1", kind="Node", name=name, uid=spec.node_uid)
        meta = ObjectMeta(name=name, owner_references=(owner,))
        if known is not None:
            meta = replace(meta, uid=known.uid, resource_version=known.metadata.resource_version)
            if not spec.passed and known.spec.node_uid == spec.node_uid:
                spec = replace(spec, last_pass=last_pass(known.spec))
            written = await self._client.replace(Preflight(metadata=meta, spec=spec))
        else:
            written = await self._client.create(Preflight(metadata=meta, spec=spec))
        if self._known.records.get(name) is known:
            # The watch may bring it only after the pod is gone, and until then the node would be tested again.
            self._known.record_changed(known, written)
        self._teller.ended(name, spec)
        ran_s = spec.time.timestamp() - action.test.started_at
        self._metrics.seconds.labels(str(spec.level)).observe(max(0.0, ran_s))
        self._metrics.results.labels(str(spec.level), "passed" if spec.passed else "failed").inc()
        await self._delete(action.test.name, action.test.uid)

    async def _remove(self, action: Remove) -> None:
        test = action.test
        if action.inconclusive:
            self._teller.inconclusive(test, action.why)
            self._metrics.results.labels(str(test.level), "inconclusive").inc()
        if action.why:
            log.info("preflight: the test of node %s ends: %s", test.node, action.why)
        await self._delete(test.name, test.uid)

    async def _revoke(self, action: Revoke) -> None:
        """Mark the record as revoked. If it were deleted, findings that its test cleared would count again."""
        known = self._known.records.get(action.node)
        if known is None or known.spec.revoked_time is not None:
            return
        meta = ObjectMeta(name=known.name, uid=known.uid, resource_version=known.metadata.resource_version)
        meta = replace(meta, owner_references=known.metadata.owner_references)
        spec = replace(known.spec, revoked_time=datetime.fromtimestamp(self._clock(), UTC))
        await self._client.replace(Preflight(metadata=meta, spec=spec))
        self._teller.revoked(action.node, action.record)

    async def _delete(self, name: str, uid: str) -> None:
        with suppress(NotFound):
            await self._client.delete(Pod, name, namespace=self._namespace, uid=uid)

    def _taint_wanted(self, node: Node) -> NodeChange | None:
        """Decide by the node's current state: the cache may still show the previous boot."""
        return NodeChange(put=(PENDING,)) if self._in_doubt(node) else None

    def _taint_unwanted(self, node: Node) -> NodeChange | None:
        return None if self._in_doubt(node) else NodeChange(drop=_OWNED)

    def _in_doubt(self, node: Node) -> bool:
        if is_ignored(node.metadata.labels):
            return False
        known = self._known.records.get(node.name)
        if doubt(identity(node), tested(known.spec) if known is not None else None):
            return True
        return not has_gpus(allocatable(node), node.metadata.labels)

    def _policy_changed(self, old: ConfigMap | None, new: ConfigMap | None) -> None:
        """Take a new policy. If the text is not valid, the previous one stays; remediation reports the problem."""
        text = new.data.get(HEALTH_POLICY_KEY) if new is not None else None
        if text:
            self._known.policy.replace(text, HEALTH_POLICY_KEY)
        else:
            self._known.policy = PolicyInUse()
        self._loop.wake()
