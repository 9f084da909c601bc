"""Shadow mode: plans for hypothetical pods, and logs what it would do instead of doing it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muster.kube.clock import steady_time
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import from_dict
from muster.scheduler.explain.why_waiting import explain
from muster.scheduler.gangs.placements import placed_slots
from muster.scheduler.metrics import SchedulerMetrics
from muster.scheduler.plan import Action, Bind, EvictMember, Plan, Refuse, RemoveMember, TryEviction, WritePlacement
from muster.scheduler.reasons import Why
from muster.scheduler.snapshot import Snapshot
from muster.scheduler.state import ClusterState

log = logging.getLogger(__name__)

_OfPod = Bind | Refuse | RemoveMember | EvictMember


class Shadow:
    """Hypothetical pods of jobs, and the reports on them.

    Args:
        metrics: counts what would be done.
        changed: called when there is something new to plan for.
    """

    def __init__(self, metrics: SchedulerMetrics, changed: Callable[[], None] = lambda: None) -> None:
        """Start without hypothetical pods."""
        self.changed = changed
        self._metrics = metrics
        self._pods: dict[str, tuple[Pod, ...]] = {}
        self._said: dict[str, str] = {}
        self._waits: dict[str, Why] = {}

    def suppose(self, job_uid: str, pods: Sequence[Mapping[str, Any]]) -> None:
        """Set the hypothetical pods of a job; empty if the job is gone or its pods exist."""
        if pods:
            self._pods[job_uid] = tuple(from_dict(pod, Pod) for pod in pods)
        else:
            self._pods.pop(job_uid, None)
        self.changed()

    def apply(self, state: ClusterState) -> None:
        """Add new hypothetical pods to the state, and remove old ones."""
        now = steady_time()
        wanted = {pod.uid: pod for pods in self._pods.values() for pod in pods}
        for uid in [uid for uid in state.pods if uid.startswith("shadow-") and uid not in wanted]:
            state.remove_pod(uid, now)
        for uid, pod in wanted.items():
            if uid not in state.pods:
                state.set_pod(pod, now)

    def say(self, snapshot: Snapshot, plan: Plan) -> None:
        """Report what the plan would do and why gangs wait, if that changed."""
        for action in plan.actions:
            if isinstance(action, TryEviction):
                continue  # a dry run, whose outcome is unknown here
            name = action.pod if isinstance(action, _OfPod) else action.placement.name
            text = f"would {type(action).__name__} {name}{_details(action)}"
            gang = snapshot.gangs.get(action.gang)
            key = f"{action.gang}/{type(action).__name__}/{name}"
            if self._said.get(key) != text:
                self._said[key] = text
                self._metrics.shadow_actions.labels(type(action).__name__).inc()
                log.info("shadow: %s: %s", gang.full_name if gang is not None else action.gang, text)
        for key, reason in plan.waiting.items():
            gang = snapshot.gangs.get(key)
            if gang is not None and self._waits.get(key) is not reason.why:
                said = explain(snapshot, gang, reason=reason, memo=plan.memo).summary
                log.info("shadow: %s: would wait: %s", gang.full_name, said)
        self._waits = {key: reason.why for key, reason in plan.waiting.items()}
        self._said = {key: text for key, text in self._said.items() if key.rsplit("/", 2)[0] in snapshot.gangs}


def _details(action: Action) -> str:
    if isinstance(action, WritePlacement):
        nodes = ", ".join(f"{slot} -> {node}" for slot, (node, _) in sorted(placed_slots(action.placement).items()))
        return f": {nodes}"
    if isinstance(action, Bind):
        return f" to {action.node}"
    return f": {action.reason.text()}" if isinstance(action, Refuse) else ""
