"""Explains why the controller delays a job although there may be room: it creates no pods, or begins no attempt."""

from __future__ import annotations

from typing import Final

from muster.api.fixed_spec import effective
from muster.api.training_job import TrainingJob
from muster.trainingjobs.attempts import backoff
from muster.trainingjobs.snapshot import Wait
from muster.trainingjobs.status import builder, spec_edits

_BEFORE_ITS_PODS: Final = frozenset({"InvalidSpec", "CheckpointAwaited", "GpusPerNodeMissing", "NoNodes"})
"""Reasons of the condition Admitted for a job whose next attempt has no number yet (`decide`, `nodeuse`)."""


def wants_nodes(job: TrainingJob) -> bool:
    """Returns whether the job has not ended and is not being stopped."""
    return not job.spec.suspend and job.status.phase not in ("Succeeded", "Failed")


def held_back(job: TrainingJob, *, complete: bool, now: float) -> Wait | None:
    """Return why the controller delays the job; None if the job needs only free nodes.

    It reads typed fields: the phase, reasons of conditions, the backoff. The text is the status's message.

    Args:
        job: a job that wants nodes.
        complete: every pod of its attempt exists.
        now: seconds since the epoch.
    """
    status = job.status
    if status.attempt <= 0 or status.phase in ("Suspended", "Stopping"):
        why = Wait(*builder.condition_reason(status, "Admitted"))
        if why.reason in _BEFORE_ITS_PODS and not builder.condition_holds(status, "Admitted"):
            return why
    if status.phase == "Stopping":
        return Wait(builder.condition_reason(status, "Running")[0] or "Stopping", status.message)
    if status.phase == "Restarting" and backoff.begins_at(status) > now:
        return Wait("Backoff", backoff.said(status))
    if complete or status.attempt <= 0:
        return None
    spec = effective(job)
    if spec.lost:
        return Wait("SpecChanged", spec_edits.changed_text(spec))
    reason, message = builder.condition_reason(status, "Admitted")
    return Wait(reason, message) if reason == "PodsRefused" else None
