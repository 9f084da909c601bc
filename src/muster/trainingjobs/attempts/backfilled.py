"""Records in the status that a job is backfilled, how often it was asked to leave, and what it lost.

The scheduler decides who is backfilled (`spec.backfill` of the Placement) and who is asked (phase Preempting). The
reason is then Backfilled, or Moved for a job that makes room on a partly used node. One attempt is asked once: the
request in the status has the attempt's number. So a new leader, and a status that was partly edited, do not count the
same request again.
"""

from __future__ import annotations

from msgspec.structs import replace

from muster.api.training_job_status import BackfillStatus, LeaveRequest, TrainingJobStatus
from muster.trainingjobs.plan import Action, RecordEvent, WriteStatus
from muster.trainingjobs.snapshot import JobSnapshot
from muster.trainingjobs.status import builder


def is_backfilled(status: TrainingJobStatus) -> bool:
    """Returns whether the job uses nodes that are reserved for another gang, and may be asked to leave them."""
    return status.backfill is not None and bool(status.backfill.gang)


def follow(snapshot: JobSnapshot) -> list[Action]:
    """Write for which gang the nodes of an active job are reserved, if the status does not say so yet."""
    status, gang = snapshot.job.status, _gang(snapshot)
    known = status.backfill or BackfillStatus()
    if gang == known.gang:
        return []
    written = WriteStatus(builder.fitted(replace(status, backfill=replace(known, gang=gang))), "Backfilled")
    if not gang:
        return [written]
    message = f"uses nodes that are reserved for {gang}; when that gang can start, this job may be asked to leave"
    return [written, RecordEvent("Backfilled", message)]


def asked(snapshot: JobSnapshot, now: float) -> TrainingJobStatus:
    """Return the status with the request to leave that the Placement makes of the current attempt."""
    status = snapshot.job.status
    known = _settled(status, status.backfill or BackfillStatus())
    if known.request is not None and known.request.attempt == status.attempt:
        return status
    request = LeaveRequest(attempt=status.attempt, time=builder.at(now), unsaved_seconds=_unsaved_s(status, now))
    gang = _gang(snapshot)
    return replace(status, backfill=replace(known, gang=gang, asked=known.asked + 1, request=request))


def left(status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status of a job that has left its nodes. Work that it did not save counts as lost."""
    if status.backfill is None:
        return status
    return replace(status, backfill=replace(_settled(status, status.backfill), gang=""))


def _gang(snapshot: JobSnapshot) -> str:
    """Returns the gang for which the nodes of the job's pods are reserved; "" for none.

    If the Placement was deleted, the scheduler writes it again. Until then the status keeps what it says.
    """
    if not any(pod.spec.node_name for pod in snapshot.pods):
        return ""
    if snapshot.placement is None:
        known = snapshot.job.status.backfill
        return known.gang if known is not None else ""
    backfill = snapshot.placement.spec.backfill
    return backfill.gang if backfill is not None else ""


def _unsaved_s(status: TrainingJobStatus, now: float) -> float:
    """Returns how long the ranks have run since the attempt's last checkpoint, or since they began; 0 if none runs."""
    running = next((each for each in status.conditions if each.type == "Running"), None)
    if status.phase != "Running" or running is None or running.status != "True":
        return 0.0
    last = status.last_checkpoint
    saved = last.time if last is not None and last.attempt == status.attempt else None
    since = saved or running.last_transition_time
    return round(max(0.0, now - since.timestamp()), 3) if since is not None else 0.0


def _settled(status: TrainingJobStatus, backfill: BackfillStatus) -> BackfillStatus:
    """Adds the unsaved time of the newest request to the lost time, unless the attempt saved a checkpoint after it."""
    request, last = backfill.request, status.last_checkpoint
    if request is None or not request.unsaved_seconds:
        return backfill
    saved = last is not None and last.attempt == request.attempt and last.time is not None and last.time >= request.time
    lost = 0.0 if saved else request.unsaved_seconds
    return replace(
        backfill,
        seconds_lost=round(backfill.seconds_lost + lost, 3),
        request=replace(request, unsaved_seconds=0.0),
    )
