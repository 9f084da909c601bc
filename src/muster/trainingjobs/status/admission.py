"""The condition Admitted: whether every slot of the attempt has a node, and if not, the typed reason."""

from __future__ import annotations

from typing import Final

from muster.api.training_job_status import TrainingJobStatus
from muster.trainingjobs.snapshot import JobSnapshot, Wait
from muster.trainingjobs.status import builder

_OF_THE_CONTROLLER: Final = frozenset(
    {
        "CheckpointAwaited",
        "GpusPerNodeMissing",
        "InvalidSpec",
        "NoNodes",
        "NodesAssigned",
        "PodsCreated",
        "PodsRefused",
        "Preempted",
        "Resumed",
        "Suspended",
    }
)
"""Reasons of Admitted that the job controller sets; the scheduler sets all others."""


def word(snapshot: JobSnapshot) -> Wait | None:
    """Return why the scheduler has no nodes for the job; None if it has given no reason.

    Until the scheduler gives this leader a reason, the reason in the status stays.
    """
    if snapshot.waits_for is not None:
        return snapshot.waits_for if snapshot.waits_for.reason else None
    status = snapshot.job.status
    if builder.condition_holds(status, "Admitted"):
        return None
    stands = Wait(*builder.condition_reason(status, "Admitted"))
    return stands if stands.reason and stands.reason not in _OF_THE_CONTROLLER else None


def with_admission(
    snapshot: JobSnapshot, status: TrainingJobStatus, *, complete: bool, bound: bool, now: float
) -> TrainingJobStatus:
    """Return the status with the current condition; the same object if the condition is unchanged.

    `complete`: every pod of the attempt exists; `bound`: each has a node.
    """
    said = Wait("PodsCreated", "every pod is created")
    if bound:
        said = Wait("NodesAssigned", "every pod has a node")
    elif not complete:
        if snapshot.refusal is None:
            return status
        said = Wait("PodsRefused", snapshot.refusal.message)
    else:
        said = word(snapshot) or said
    known = (builder.condition_holds(status, "Admitted"), *builder.condition_reason(status, "Admitted"))
    if known == (bound, said.reason, builder.shortened(said.message)):
        return status
    generation = snapshot.job.metadata.generation
    return builder.with_condition(status, "Admitted", bound, said.reason, said.message, now, generation)
