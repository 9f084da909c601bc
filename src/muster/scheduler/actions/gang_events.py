"""Tells people what happens to gangs: one event when a reason changes, on the job (or the first pod), not one a pod.

Pods' conditions stay as they are while a gang waits: `Unschedulable` would make cluster autoscalers add nodes for one
member of a gang. A pod that will never be placed as it is gets PodScheduled False, once a reason; all pods of a gang do
where nodes may be added for all of them (see `demand`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from muster.api.words import counted
from muster.kube.client import STRATEGIC_MERGE_PATCH, Client
from muster.kube.core import ObjectReference
from muster.kube.errors import ApiError, ConfigError
from muster.kube.events import NORMAL, WARNING, EventRecorder
from muster.kube.pod import Pod
from muster.scheduler.actions.bound_events import Announcer
from muster.scheduler.actions.event_objects import reference, reference_to_owner
from muster.scheduler.explain.refused_evictions import EVICTION_REFUSED, stays_for
from muster.scheduler.explain.why_waiting import explain
from muster.scheduler.gangs.adapters.membership import Workload
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.gangs.placements import timestamp
from muster.scheduler.plan import Bind, Plan, Refuse
from muster.scheduler.queue.demand import Demand
from muster.scheduler.reasons import Reason, Why
from muster.scheduler.snapshot import Snapshot

log = logging.getLogger(__name__)

Waits = Callable[[str, str, str], None]
"""Told `namespace/name` of a gang, the typed reason why it waits, and a sentence; both "" when it no longer does."""

PATIENCE_S = 15.0
"""A gang's members appear one by one and old pods take a while to end: said only when it lasts."""
_PASSING = frozenset(
    {Why.WAITING_FOR_PODS, Why.WAITING_FOR_WORKLOAD, Why.WAITING_FOR_OLD_POD, Why.OLD_PLACEMENT, Why.WAITING_FOR_VOLUME}
)
_SILENT = frozenset({Why.BINDING, Why.RELEASING, Why.LEAVING})
SHOWN_AT_ONCE = 16
"""Autoscalers look every ten seconds: a large gang's conditions need not crowd out binds."""
AGAIN_S = 15.0
"""The numbers in a reason that stays the same are brought up to date no more often, one gang a plan."""


class _Told(NamedTuple):
    gang: str
    why: Why
    text: str
    at: float


class Reporter:
    """Remembers what was said of each gang; `waits` is told of gangs as well, where somebody listens.

    What a leader before this one said of a job stands in its condition Admitted, and is not said again.
    """

    def __init__(self, client: Client, events: EventRecorder, announcer: Announcer, waits: Waits | None = None) -> None:
        self._client = client
        self._events = events
        self._announcer = announcer
        self._waits = waits
        self._told: dict[str, _Told] = {}
        self._since: dict[str, tuple[Why, float]] = {}
        self._said: dict[str, Why] = {}
        self._stands: dict[str, str] | None = None
        self._warned: set[str] = set()
        self._refused: dict[str, Reason] = {}
        self._showing: set[str] = set()
        self._pace = asyncio.Semaphore(SHOWN_AT_ONCE)

    def waiting(self, snapshot: Snapshot, plan: Plan, now: float) -> None:
        """Say why gangs wait, where that is news."""
        if self._stands is None:
            self._stands = {key: gang.job.said for key, gang in snapshot.gangs.items() if gang.job and gang.job.said}
        refreshed = False
        for key, reason in plan.waiting.items():
            gang = snapshot.gangs.get(key)
            if gang is None or reason.why in _SILENT:
                continue
            why, since = self._since.get(key, (reason.why, now))
            if why is not reason.why:
                since = now
            self._since[key] = (reason.why, since)
            if reason.why in _PASSING and now - since < PATIENCE_S:
                continue
            news = self._said.get(key) is not reason.why
            if not news and (refreshed or not self._outdated(key, now)):
                continue
            refreshed = refreshed or not news
            self._said[key] = reason.why
            text = (
                reason.text() if reason.why is Why.BEHIND else explain(snapshot, gang, reason=reason, now=now).summary
            )
            if news and self._stands.pop(key, "") != reason.why:  # else the leader before this one has said it
                self._event(gang, WARNING, "FailedScheduling", f"{text} [{reason.why}]")
            self._tell(gang, reason.why, text, now)
        for key in [key for key in self._since if key not in snapshot.gangs]:
            self._forget(key)

    def _outdated(self, key: str, now: float) -> bool:
        told = self._told.get(key)
        return told is not None and now - told.at >= AGAIN_S

    def _tell(self, gang: Gang, why: Why, text: str, now: float) -> None:
        if self._waits is not None and not gang.single:
            told = self._told.get(gang.key)
            self._told[gang.key] = _Told(gang.full_name, why, text, now)
            if told is None or (told.why, told.text) != (why, text):
                self._waits(gang.full_name, why, text)

    def _forget(self, key: str) -> None:
        """The gang does not wait any more."""
        self._since.pop(key, None)
        self._said.pop(key, None)
        if self._stands is not None:
            self._stands.pop(key, None)
        told = self._told.pop(key, None)
        if told is not None and self._waits is not None:
            self._waits(told.gang, "", "")

    def placed(self, gang: Gang, reason: str) -> None:
        """The gang was given nodes; say so where it had others before."""
        self._forget(gang.key)
        if reason:
            self._event(gang, NORMAL, "Placed", f"placed again ({reason})")

    def told_to_leave(self, gang: Gang, why: str) -> None:
        """Say that the gang has to give its nodes back."""
        self._event(gang, WARNING, "Preempting", why)

    def stays(self, gang: Gang, why: str, *, by: Gang | None = None) -> None:
        """Say that the gang, or a pod of it, may not be evicted; to whom it was to leave for, before any has left."""
        if by is None:
            self._event(gang, WARNING, EVICTION_REFUSED, why)
        else:
            self._event(by, WARNING, EVICTION_REFUSED, stays_for(gang, why), related=reference(gang))

    def bound(self, gang: Gang) -> None:
        """Say that the whole gang is bound."""
        nodes = len({node for node, _ in gang.placed.values()})
        about = reference(gang)
        if about is not None:
            text = f"all of it is bound: {counted(len(gang.placed), 'pod')} on {counted(nodes, 'node')}"
            self._announcer.bound(about, "GangBound", text)

    def pod_bound(self, bind: Bind) -> None:
        """Say that a pod was bound."""
        if bind.slot < 0:
            self._said.pop(bind.gang, None)
        about = ObjectReference(api_version="v1", kind="Pod", namespace=bind.namespace, name=bind.pod, uid=bind.uid)
        text = f"Successfully assigned {bind.namespace}/{bind.pod} to {bind.node}"
        self._announcer.bound(about, "Scheduled", text)

    def released(self, gang: Gang, why: str) -> None:
        """Say that the gang was given up half bound."""
        self._event(gang, WARNING, "GangReleased", f"{why}; its bound pods are deleted to be made anew")

    def warn(self, workload: Workload) -> None:
        """Say on the object itself what would go wrong with it, once."""
        if workload.says.warning and workload.ref.uid not in self._warned:
            self._warned.add(workload.ref.uid)
            about = reference_to_owner(workload.owner, workload.ref.namespace)
            self._events.event(about, WARNING, "ReleaseCountsAsFailure", workload.says.warning)

    async def refuse(self, refusal: Refuse) -> None:
        """Write the condition on the pod, once a reason."""
        if self._refused.get(refusal.uid) == refusal.reason:
            return
        self._refused[refusal.uid] = refusal.reason
        what = _unscheduled(refusal.reason.why.value, refusal.reason.text())
        await self._set_condition(refusal.namespace, refusal.pod, refusal.uid, what)

    async def show(self, demand: Demand, now: float) -> None:
        """Write a gang's demand, or that it is none any more, on its pods: a few at a time, each once."""
        pods = [(name, uid) for name, uid in demand.pods if uid not in self._showing]
        what = _unscheduled(demand.reason, demand.message) | {"lastTransitionTime": timestamp(int(now))}

        async def one(name: str, uid: str) -> None:
            async with self._pace:
                await self._set_condition(demand.namespace, name, uid, what)

        self._showing.update(uid for _, uid in pods)
        try:
            await asyncio.gather(*(one(*pod) for pod in pods))
        finally:
            self._showing.difference_update(uid for _, uid in pods)

    async def _set_condition(self, namespace: str, name: str, uid: str, condition: Mapping[str, Any]) -> None:
        try:
            await self._client.patch(
                Pod,
                name,
                {"metadata": {"uid": uid}, "status": {"conditions": [condition]}},
                namespace=namespace,
                subresource="status",
                content_type=STRATEGIC_MERGE_PATCH,
            )
        except (ApiError, ConfigError) as error:
            log.warning("setting PodScheduled of pod %s/%s: %s", namespace, name, error)

    def forget_pod(self, uid: str) -> None:
        """The pod is gone."""
        self._refused.pop(uid, None)

    def _event(self, gang: Gang, type_: str, reason: str, message: str, related: ObjectReference | None = None) -> None:
        about = reference(gang)
        if about is not None:
            self._events.event(about, type_, reason, message, related=related)


def _unscheduled(reason: str, message: str) -> dict[str, Any]:
    return {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
