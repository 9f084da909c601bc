"""Reports on gangs in Events and conditions: one Event per changed reason, on the job (or the first pod).

Pods' conditions do not change while a gang waits: `Unschedulable` would make cluster autoscalers add nodes for
single members. There are two exceptions. A pod that can never be placed in its present form gets PodScheduled
False, once per reason. If scaling is approved for a gang, all its pods get this condition (see `demand`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from muster.api.words import counted
from muster.kube.client import STRATEGIC_MERGE_PATCH, Client
from muster.kube.errors import ApiError, ConfigError
from muster.kube.events import NORMAL, WARNING, EventRecorder
from muster.kube.objects.core import ObjectReference
from muster.kube.objects.pod import Pod
from muster.scheduler.actions.bound_events import Announcer
from muster.scheduler.actions.event_objects import reference, reference_to_owner
from muster.scheduler.explain.refused_evictions import EVICTION_REFUSED, refusal_facts
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
"""Callback with `namespace/name` of a gang, the reason why it waits, and a text.

Reason and text are "" when the wait ends.
"""

PATIENCE_S = 15.0
"""Delay before a report. Members appear one by one and old pods end slowly, so short waits are not reported."""
_PASSING = frozenset(
    {Why.WAITING_FOR_PODS, Why.WAITING_FOR_WORKLOAD, Why.WAITING_FOR_OLD_POD, Why.OLD_PLACEMENT, Why.WAITING_FOR_VOLUME}
)
_SILENT = frozenset({Why.BINDING, Why.RELEASING, Why.LEAVING})
SHOWN_AT_ONCE = 16
"""Limit on concurrent writes of conditions, so that they do not delay binds. Autoscalers read every ten seconds."""
AGAIN_S = 15.0
"""Minimum interval between updates of the numbers in an unchanged reason, one gang per plan."""


class _Notice(NamedTuple):
    gang: str
    why: Why
    text: str
    at: float


class Reporter:
    """Writes Events and conditions on gangs, without duplicates; also calls `waits`, if set.

    A previous leader's report on a job is in its condition Admitted, and is not repeated.
    """

    def __init__(self, client: Client, events: EventRecorder, announcer: Announcer, waits: Waits | None = None) -> None:
        self._client = client
        self._events = events
        self._announcer = announcer
        self._waits = waits
        self._notices: dict[str, _Notice] = {}
        self._since: dict[str, tuple[Why, float]] = {}
        self._said: dict[str, Why] = {}
        self._stands: dict[str, str] | None = None
        self._warned: set[str] = set()
        self._refused: dict[str, Reason] = {}
        self._showing: set[str] = set()
        self._pace = asyncio.Semaphore(SHOWN_AT_ONCE)

    def waiting(self, snapshot: Snapshot, plan: Plan, now: float) -> None:
        """Report why gangs wait, if that changed."""
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
            text = reason.text()
            if reason.why is not Why.BEHIND:
                text = explain(snapshot, gang, reason=reason, now=now, memo=plan.memo).summary
            if news and self._stands.pop(key, "") != reason.why:  # else the previous leader reported it
                self._event(gang, WARNING, "FailedScheduling", f"{text} [{reason.why}]")
            self._notify(gang, reason.why, text, now)
        for key in [key for key in self._since if key not in snapshot.gangs]:
            self._forget(key)

    def _outdated(self, key: str, now: float) -> bool:
        notice = self._notices.get(key)
        return notice is not None and now - notice.at >= AGAIN_S

    def _notify(self, gang: Gang, why: Why, text: str, now: float) -> None:
        if self._waits is not None and not gang.single:
            notice = self._notices.get(gang.key)
            self._notices[gang.key] = _Notice(gang.full_name, why, text, now)
            if notice is None or (notice.why, notice.text) != (why, text):
                self._waits(gang.full_name, why, text)

    def _forget(self, key: str) -> None:
        """Drop a gang that no longer waits."""
        self._since.pop(key, None)
        self._said.pop(key, None)
        if self._stands is not None:
            self._stands.pop(key, None)
        notice = self._notices.pop(key, None)
        if notice is not None and self._waits is not None:
            self._waits(notice.gang, "", "")

    def placed(self, gang: Gang, reason: str) -> None:
        """Report the gang's new nodes if it had others before."""
        self._forget(gang.key)
        if reason:
            self._event(gang, NORMAL, "Placed", f"placed again ({reason})")

    def preempting(self, gang: Gang, why: str) -> None:
        """Report that the gang has to return its nodes."""
        self._event(gang, WARNING, "Preempting", why)

    def stays(self, gang: Gang, why: str, until: float, *, by: Gang | None = None) -> None:
        """Report a refused eviction on the gang; a refused dry run is reported on `by`, the preempting gang.

        Args:
            gang: the gang that stays.
            why: the API server's answer.
            until: until when the gang is not a candidate, in seconds since the epoch.
            by: the gang that needs the room, if the eviction was a dry run.
        """
        facts = refusal_facts(why, until)
        if by is None:
            self._event(gang, WARNING, EVICTION_REFUSED, why, annotations=facts)
        else:
            text = f"{gang.full_name} cannot be evicted for it: {why}"
            self._event(by, WARNING, EVICTION_REFUSED, text, related=reference(gang), annotations=facts)

    def bound(self, gang: Gang) -> None:
        """Report that the whole gang is bound."""
        nodes = len({node for node, _ in gang.placed.values()})
        about = reference(gang)
        if about is not None:
            text = f"all of it is bound: {counted(len(gang.placed), 'pod')} on {counted(nodes, 'node')}"
            self._announcer.bound(about, "GangBound", text)

    def pod_bound(self, bind: Bind) -> None:
        """Report that a pod was bound."""
        if bind.slot < 0:
            self._said.pop(bind.gang, None)
        about = ObjectReference(api_version="v1", kind="Pod", namespace=bind.namespace, name=bind.pod, uid=bind.uid)
        text = f"Successfully assigned {bind.namespace}/{bind.pod} to {bind.node}"
        self._announcer.bound(about, "Scheduled", text)

    def released(self, gang: Gang, why: str) -> None:
        """Report that a partly bound gang was released."""
        self._event(gang, WARNING, "GangReleased", f"{why}; its bound pods are deleted and recreated")

    def warn(self, workload: Workload) -> None:
        """Report the workload's warning on the object itself, once."""
        if workload.says.warning and workload.ref.uid not in self._warned:
            self._warned.add(workload.ref.uid)
            about = reference_to_owner(workload.owner, workload.ref.namespace)
            self._events.event(about, WARNING, "ReleaseCountsAsFailure", workload.says.warning)

    async def refuse(self, refusal: Refuse) -> None:
        """Write the condition on the pod, once per reason."""
        if self._refused.get(refusal.uid) == refusal.reason:
            return
        self._refused[refusal.uid] = refusal.reason
        what = _unscheduled(refusal.reason.why.value, refusal.reason.text())
        await self._set_condition(refusal.namespace, refusal.pod, refusal.uid, what)

    async def show(self, demand: Demand, now: float) -> None:
        """Write or withdraw a gang's demand on its pods: a few at a time, each once."""
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
        """Drop a deleted pod."""
        self._refused.pop(uid, None)

    def _event(
        self,
        gang: Gang,
        type_: str,
        reason: str,
        message: str,
        related: ObjectReference | None = None,
        annotations: Mapping[str, str] | None = None,
    ) -> None:
        about = reference(gang)
        if about is not None:
            self._events.event(about, type_, reason, message, related=related, annotations=annotations)


def _unscheduled(reason: str, message: str) -> dict[str, Any]:
    return {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
