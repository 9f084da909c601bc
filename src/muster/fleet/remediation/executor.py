"""Executes remediation plans, for many nodes at the same time.

Writes of sessions and of taints fail if the object has changed since it was read.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from msgspec.structs import replace

from muster.api.names import HEALTH_CONFIG_MAP, HEALTH_IGNORE, LABEL_HEALTH
from muster.api.node_remediation import NodeRemediation, NodeRemediationStatus
from muster.api.quarantine import quarantined
from muster.fleet.providers.base import ProviderError
from muster.fleet.remediation import plan as plans
from muster.fleet.remediation.cache import Known
from muster.fleet.remediation.draining.evictions import Evictions
from muster.fleet.remediation.evidence.mesh import CONFIG_MAP as MESH_CONFIG_MAP
from muster.fleet.remediation.evidence.mesh import KEY as MESH_KEY
from muster.fleet.remediation.ladder.record import (
    ANNOTATION_RECORD,
    QUARANTINE,
    asks,
    is_quarantined,
    record_of,
    unfolded,
)
from muster.fleet.remediation.ladder.session import is_wanted
from muster.fleet.remediation.ladder.states import stage_of
from muster.fleet.remediation.lookups import REQUEST_TIMEOUT_S, Looker
from muster.fleet.remediation.metrics import RemediationMetrics
from muster.fleet.remediation.repairs.replacement import Replacer
from muster.fleet.remediation.repairs.steps import StepSettings, step_pod
from muster.fleet.remediation.snapshot import QuarantineRecord, RemediationNode
from muster.kube.client import STRATEGIC_MERGE_PATCH, Client
from muster.kube.clock import instant
from muster.kube.errors import NotFound
from muster.kube.events import NORMAL, WARNING, EventRecorder
from muster.kube.executor import Executor, WriteOutcome
from muster.kube.objects.core import ConfigMap, ObjectReference
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import encode
from muster.kube.objects.taints import NodeChange
from muster.kube.taintwriter import Outcome, TaintWriter

log = logging.getLogger(__name__)

NAME = "remediation"
AT_ONCE = 64
"""Maximum number of requests at the same time.

With this many, 750 nodes are in quarantine within seconds, and the API server's queues stay short.
"""
SLICE = 2 * AT_ONCE
"""After this many writes, the controller checks whether something more urgent has come up."""
STORM = 16
"""If a plan writes fewer taints than this, the other writes follow at once.

So each new session contains the findings that were known when its node was tainted.
"""
DEFERRED_S = 5.0
"""Status writes are deferred for at most this long, even if more nodes keep failing."""
_OWNED = ((QUARANTINE.key, QUARANTINE.effect),)


class Carrier:
    """Executes plans. If an action fails, the next plan decides about it again.

    Args:
        client: the API server.
        known: the cache, which gets the written objects at once.
        looker: makes the final precondition check before a machine is touched.
        evictions: evicts pods.
        steps: settings of the pods that act on machines.
        replacer: replaces machines; None if no pool can replace machines.
        events: receives the Events.
        metrics: counts the actions.
        namespace: the namespace of two ConfigMaps: `muster-mesh`, which is written here, and `muster-health`, the
            object of Events without a node.
        clock: seconds since the epoch.
        rng: source of jitter.
    """

    def __init__(
        self,
        client: Client,
        known: Known,
        looker: Looker,
        evictions: Evictions,
        *,
        steps: StepSettings,
        replacer: Replacer | None,
        events: EventRecorder,
        metrics: RemediationMetrics,
        namespace: str,
        clock: Callable[[], float],
        rng: random.Random,
    ) -> None:
        self._client = client
        self._known = known
        self._looker = looker
        self._evictions = evictions
        self._steps = steps
        self._replacer = replacer
        self._events = events
        self._metrics = metrics
        self._namespace = namespace
        self._clock = clock
        self._writer = TaintWriter(client, _OWNED, field_manager=f"muster-{NAME}", rng=rng)
        self._executor = Executor(NAME, at_once=AT_ONCE, timeout_s=REQUEST_TIMEOUT_S)
        self._replaced_at: dict[str, float] = {}
        self._deferred_at: float | None = None

    async def carry_out(self, plan: plans.Plan, news_count: int) -> bool:
        """Execute a plan, or a part of it. Returns whether to plan again at once.

        Taints that keep new work off broken nodes come before all other writes. If `STORM` or more taints were written,
        the controller first plans again, for at most `DEFERRED_S`. If an agent or a test reports something new in the
        meantime, the remaining actions are dropped and the controller plans again.

        Args:
            plan: what to do.
            news_count: the value of `Known.news_count` when the plan was made.
        """
        urgent = [action for action in plan.actions if isinstance(action, plans.Quarantine)]
        again = any(await asyncio.gather(*map(self._one, urgent)))
        if again and len(urgent) >= STORM and self._may_defer():
            return True
        self._deferred_at = None
        for action in plan.actions:
            if isinstance(action, plans.Evict):
                self._evictions.begin(action.pods)
        rest = [action for action in plan.actions if not isinstance(action, plans.Quarantine | plans.Evict)]
        for first in range(0, len(rest), SLICE):
            again |= any(await asyncio.gather(*map(self._one, rest[first : first + SLICE])))
            if self._known.news_count != news_count:
                return True
        return again

    def _may_defer(self) -> bool:
        now = self._clock()
        if self._deferred_at is None:
            self._deferred_at = now
        return now < self._deferred_at + DEFERRED_S

    async def _one(self, action: plans.Action) -> bool:
        kind = type(action).__name__
        result = await self._executor.run(kind, partial(self._do, action))
        overtaken = result.outcome is WriteOutcome.OVERTAKEN
        outcome = result.value or ("overtaken" if overtaken else "failed")
        self._metrics.actions.labels(kind, outcome).inc()
        return outcome in ("done", "written")

    def _do(self, action: plans.Action) -> Coroutine[Any, Any, str]:
        if isinstance(action, plans.Open):
            return self._open(action)
        if isinstance(action, plans.Move):
            return self._move(action.session, action.status, action.event)
        if isinstance(action, plans.Quarantine):
            return self._quarantine(action)
        if isinstance(action, plans.Release):
            return self._release(action)
        if isinstance(action, plans.Describe):
            return self._describe(action)
        if isinstance(action, plans.RunStep):
            return self._run_step(action)
        if isinstance(action, plans.ForgetStep):
            return self._forget_step(action)
        if isinstance(action, plans.ReplaceMachine):
            return self._replace(action)
        assert isinstance(action, plans.Forget)
        return self._forget(action.session)

    async def _open(self, action: plans.Open) -> str:
        made = await self._client.create(replace(action.session, status=NodeRemediationStatus()))
        return await self._move(made, action.session.status, action.event)

    async def _move(
        self, session: NodeRemediation, status: NodeRemediationStatus, event: plans.RecordEvent | None
    ) -> str:
        before = session.status
        written = await self._client.replace(replace(session, status=status), subresource="status")
        self._known.written(written)
        for at in unfolded(before, status):
            if (at.rung, at.state) != (before.rung, before.state):
                self._metrics.rungs.labels(at.rung, at.state).inc()
            stage = stage_of(session, at)
            if stage is not None:
                self._metrics.stage.labels(stage[0]).observe(stage[1])
            before = at
        if event is not None:
            self._record_event(event)
        return "done"

    async def _quarantine(self, action: plans.Quarantine) -> str:
        mark = QuarantineRecord(
            action.session,
            action.generation,
            instant(action.since),
            action.why,
            event=action.event,
            fault_key=action.fault_key,
        )

        def change(node: Node) -> NodeChange | None:
            session = self._known.sessions.get(action.session)
            status = session.status if session is not None else None
            over = status is not None and status.state == "Released" and status.generation >= action.generation
            if node.uid != action.node.uid or over:
                return None
            theirs = record_of(node) is None and quarantined(node)
            said = encode(replace(mark, foreign=theirs)).decode()
            return NodeChange(put=() if theirs else (QUARANTINE,), annotations={ANNOTATION_RECORD: said})

        return await self._write(action.node.name, change)

    async def _write(self, name: str, change: Callable[[Node], NodeChange | None]) -> str:
        written = await self._writer.write(name, change, known=self._known.raw.get(name))
        if written.outcome is Outcome.WRITTEN and written.node is not None:
            self._known.node_written(written.node)
        return written.outcome.value.lower()

    def _is_over(self, name: str) -> bool:
        """Return whether the session does not keep its node in quarantine.

        It is gone or closed, or it was opened again and has not reached the rung Quarantine.
        """
        session = self._known.sessions.get(name)
        return session is None or not is_quarantined(session.status)

    async def _release(self, action: plans.Release) -> str:
        def change(node: Node) -> NodeChange | None:
            mark = record_of(node)
            if node.uid != action.node.uid or mark is None or mark.session != action.session:
                return None
            if mark.generation > action.generation or not self._is_over(action.session):
                return None  # a newer generation of the session has put the node into quarantine again
            return NodeChange(drop=() if mark.foreign else _OWNED, annotations={ANNOTATION_RECORD: None})

        return await self._write(action.node.name, change)

    async def _describe(self, action: plans.Describe) -> str:
        now = instant(self._clock())
        conditions = [
            {
                "type": type_,
                "status": "True" if text is not None else "False",
                "reason": "Remediation" if text is not None else "Passed",
                "message": text or "",
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            }
            for type_, text in action.conditions.items()
        ]
        patch = {"metadata": {"uid": action.node.uid}, "status": {"conditions": conditions}}
        await self._client.patch(
            Node, action.node.name, patch, subresource="status", content_type=STRATEGIC_MERGE_PATCH
        )
        return "described"

    async def _ours(self, known: RemediationNode) -> Node | None:
        """Return the node as it is now.

        Returns None unless the node has the known UID, is in quarantine, is not cordoned, and does not have the label
        `muster.dev/health: ignore`.
        """
        node = await self._client.get(Node, known.name)
        theirs = node.spec.unschedulable or node.metadata.labels.get(LABEL_HEALTH) == HEALTH_IGNORE
        return node if node.uid == known.uid and not theirs and quarantined(node) else None

    async def _run_step(self, action: plans.RunStep) -> str:
        """Start a step's pod. Final precondition check: the session still asks for the step and the node is empty."""
        if await self._ours(action.node) is None:
            return "refused"
        if not is_wanted(await self._client.get(NodeRemediation, action.session), action.name):
            return "overtaken"
        if not await self._looker.is_empty(action.node.name, of_tests=action.step == "reset"):
            log.warning("remediation: node %s is not empty: no %s", action.node.name, action.step)
            return "refused"
        await self._client.create(step_pod(action, self._steps), kind=Pod)
        return "started"

    async def _forget_step(self, action: plans.ForgetStep) -> str:
        await self._client.delete(Pod, action.name, namespace=self._steps.namespace, uid=action.uid, grace_s=0)
        return "forgotten"

    async def _replace(self, action: plans.ReplaceMachine) -> str:
        """Replace the machine. Final precondition check: the node is in quarantine for this session and empty."""
        if self._replacer is None or self._clock() < self._replaced_at.get(action.session, 0.0):
            return "waits"
        node = await self._ours(action.node)
        mark = record_of(node) if node is not None else None
        if node is None or mark is None or mark.session != action.session:
            return "refused"
        session = await self._client.get(NodeRemediation, action.session)
        if session.status.rung != "Replace" or session.status.state != "Open" or asks(session, "Quarantine"):
            return "overtaken"
        if node.ready and not await self._looker.is_empty(node.name):
            return "refused"
        self._replaced_at[action.session] = self._clock() + 60.0
        try:
            await self._replacer.replace(node)
        except ProviderError as error:
            log.warning("remediation: replacing %s: %s", node.name, error)
            return "failed"
        return "asked"

    async def _forget(self, session: NodeRemediation) -> str:
        meta = session.metadata
        await self._client.delete(NodeRemediation, session.name, uid=meta.uid, resource_version=meta.resource_version)
        return "forgotten"

    async def write_members(self, text: str) -> bool:
        """Write the list of mesh members if it changed. Returns whether the ConfigMap now holds this list."""

        async def write() -> None:
            try:
                there = await self._client.get(ConfigMap, MESH_CONFIG_MAP, self._namespace)
                if there.data.get(MESH_KEY) != text:
                    patch = {"data": {MESH_KEY: text}}
                    await self._client.patch(ConfigMap, MESH_CONFIG_MAP, patch, namespace=self._namespace)
            except NotFound:
                meta = ObjectMeta(name=MESH_CONFIG_MAP, namespace=self._namespace)
                await self._client.create(ConfigMap(metadata=meta, data={MESH_KEY: text}))

        return (await self._executor.run("the mesh's members", write)).outcome is WriteOutcome.DONE

    def _record_event(self, action: plans.RecordEvent) -> None:
        kind = WARNING if action.warning else NORMAL
        if action.node is not None:
            # Like the kubelet: `kubectl describe node` lists Events whose involvedObject.uid is the node's name.
            about = ObjectReference(kind="Node", name=action.node.name, uid=action.node.name)
            self._events.event(about, kind, action.reason, action.message)
        else:
            meta = ObjectMeta(name=HEALTH_CONFIG_MAP, namespace=self._namespace)
            self._events.event(ConfigMap(metadata=meta), kind, action.reason, action.message)
