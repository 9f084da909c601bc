"""Shadow mode: logs and counts the actions that the controller would take for jobs that have not begun."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from muster.api import names
from muster.api.training_job import TrainingJob
from muster.trainingjobs.decide import decide
from muster.trainingjobs.metrics import TrainingJobMetrics
from muster.trainingjobs.plan import Action, CreatePod, Direct, WriteStatus
from muster.trainingjobs.pods.pod import PodSettings, build_pod
from muster.trainingjobs.snapshot import JobSnapshot

log = logging.getLogger(__name__)

Suppose = Callable[[str, Sequence[dict[str, Any]]], None]
"""Receives a job's UID and the pods that it would have; an empty list when the job is gone or has begun."""

_STEPS: Final = 8


class Shadow:
    """Logs the actions once for each generation of a job.

    A job that has begun is skipped: its supervisors report to another controller.

    Args:
        suppose: called with the pods that would exist, so that the scheduler can plan for them.
        pods: settings that pods would get.
        metrics: counts what would be done.
    """

    def __init__(self, suppose: Suppose, pods: PodSettings, metrics: TrainingJobMetrics) -> None:
        """Create the mode without logged jobs."""
        self._suppose = suppose
        self._pods = pods
        self._metrics = metrics
        self._said: dict[str, int] = {}

    def look(self, snapshot: JobSnapshot, now: float) -> None:
        """Log the actions for a job."""
        job = snapshot.job
        if job.status.attempt or job.metadata.deletion_timestamp is not None:
            self.forget(job.uid)
            return
        if self._said.get(job.uid) == job.metadata.generation:
            return
        self._said[job.uid] = job.metadata.generation
        foreseen = foresee(snapshot, now)
        for action in foreseen:
            reason = getattr(action, "reason", "")
            self._metrics.actions.labels(type(action).__name__, reason).inc()
            what = f" {names.pod_name(job.name, action.slot, action.attempt)}:" if isinstance(action, CreatePod) else ""
            log.info("shadow: %s: would %s%s %s", job.key, type(action).__name__, what, reason)
        self._suppose(job.uid, [self._pod(job, each) for each in foreseen if isinstance(each, CreatePod)])

    def forget(self, job_uid: str) -> None:
        """Forget a job that is gone or has begun."""
        if self._said.pop(job_uid, None) is not None:
            self._suppose(job_uid, ())

    def _pod(self, job: TrainingJob, action: CreatePod) -> dict[str, Any]:
        """Return the pod with the fields that the API server would add and scheduling reads."""
        pod = build_pod(job, action.slot, action.attempt, action.excluded_nodes, self._pods)
        created = job.metadata.creation_timestamp
        pod["metadata"] |= {"uid": f"shadow-{job.uid}-{action.slot}-{action.attempt}"}
        if created is not None:
            pod["metadata"]["creationTimestamp"] = created.isoformat()
        return pod


def foresee(snapshot: JobSnapshot, now: float) -> list[Action]:
    """Apply `decide` repeatedly as if its writes had happened, until it returns no more actions."""
    foreseen: list[Action] = []
    job = snapshot.job
    for _ in range(_STEPS):
        actions = decide(replace(snapshot, job=job), now).actions
        foreseen += [action for action in actions if not isinstance(action, Direct) and action not in foreseen]
        written = [action.status for action in actions if isinstance(action, WriteStatus)]
        if not written:
            break
        job = replace(job, status=written[-1])
    return foreseen
