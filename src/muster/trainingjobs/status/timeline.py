"""Converts the stages of a restart in a job's status, and the number of status writes, to metrics."""

from __future__ import annotations

from typing import Final

from muster.api.training_job_status import TrainingJobStatus
from muster.trainingjobs.metrics import TrainingJobMetrics
from muster.trainingjobs.plan import Reason

_STAGES: Final = ("detected", "stopped", "backoff", "placed", "ready", "running", "restored", "useful")


class RestartLedger:
    """Observes each restart once, when the program has reported a later step than before the fault (stage `useful`).

    If another controller becomes leader during a restart, the number of status writes of that restart is not observed.
    """

    def __init__(self, metrics: TrainingJobMetrics) -> None:
        """Create an empty ledger."""
        self._metrics = metrics
        self._writes: dict[str, int] = {}

    def wrote(self, job_uid: str, reason: Reason, status: TrainingJobStatus) -> None:
        """Record a write of the status."""
        if reason == "Restarting":
            fault = status.faults[-1]
            self._metrics.faults.labels(fault.cause, fault.rule).inc()
            self._writes.setdefault(job_uid, 0)
        if job_uid in self._writes and reason not in ("Progress", "Waiting", "Quiet"):
            self._writes[job_uid] += 1
        if reason == "Stalled":
            self._metrics.stalls.inc()
        if reason == "Useful":
            self._observe(job_uid, status)
        elif reason in ("Succeeded", "Failed", "TimeLimit", "Suspended"):
            self._writes.pop(job_uid, None)

    def forget(self, job_uid: str) -> None:
        """Forget a deleted job."""
        self._writes.pop(job_uid, None)

    def _observe(self, job_uid: str, status: TrainingJobStatus) -> None:
        timeline = status.faults[-1].timeline
        if timeline is None or timeline.fault is None:
            return
        for stage in _STAGES:
            moment = getattr(timeline, stage)
            if moment is not None:
                seconds = max(0.0, (moment - timeline.fault).total_seconds())
                self._metrics.stage_seconds.labels(stage).observe(seconds)
        if status.time_to_useful_seconds is not None:
            self._metrics.useful_seconds.observe(status.time_to_useful_seconds)
        writes = self._writes.pop(job_uid, None)
        if writes is not None:
            self._metrics.fault_writes.observe(writes)
