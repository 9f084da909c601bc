"""Ends a job after success, at a limit, or when a budget is used up. Also decides when a restart is useful."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from muster.api.training_job_status import Cause, Fault, Progress, TrainingJobStatus
from muster.trainingjobs.attempts import backfilled, run_record
from muster.trainingjobs.attempts.ends import finished_well
from muster.trainingjobs.faults.rules import Evidence, row_of
from muster.trainingjobs.plan import Action, Reason, RecordEvent, WriteStatus
from muster.trainingjobs.pods.slots import Clock, Slot, taking_part
from muster.trainingjobs.snapshot import JobSnapshot
from muster.trainingjobs.status import builder

CHECKPOINTS_BAD: Final = "CheckpointsBad"
"""Reason of the condition Failed of a job whose checkpoints cannot be restored."""


def finished(snapshot: JobSnapshot, slots: Sequence[Slot], clock: Clock) -> list[Action] | None:
    """Ends a job whose running attempt succeeded or whose time limit is over; None while the job continues."""
    status, spec = snapshot.job.status, snapshot.job.spec
    if status.phase == "Running" and _succeeded(snapshot, slots):
        return _end(snapshot, "Succeeded", "Succeeded", f"attempt {status.attempt} finished", clock.now)
    limit_s = spec.time_limit_seconds
    if limit_s is None or status.start_time is None or not clock.passed(status.start_time.timestamp() + limit_s):
        return None
    message = f"timeLimitSeconds: {limit_s} s have passed since the first start"
    return _end(snapshot, "Failed", "TimeLimit", message, clock.now)


def failed(snapshot: JobSnapshot, exhausted: tuple[Cause, int], now: float) -> list[Action]:
    """End a job whose budget is used up. The message is the newest fault's, if the status still has one."""
    messages = [builder.budget_used_up(exhausted), *(fault.message for fault in snapshot.job.status.faults[-1:])]
    return _end(snapshot, "Failed", "Failed", "; ".join(messages), now)


def not_found(snapshot: JobSnapshot, problem: str, now: float) -> list[Action]:
    """End a job whose starting checkpoint does not exist. It never starts from the beginning instead."""
    return _end(snapshot, "Failed", "CheckpointNotFound", problem, now)


def checkpoints_bad(snapshot: JobSnapshot, problem: str, now: float) -> list[Action]:
    """End a job without a checkpoint that can be restored. It never starts from the beginning instead."""
    message = (
        f"{problem}; no other checkpoint is left, and a job does not start from the beginning instead. To start from "
        "another checkpoint, create a job with spec.checkpoint.from (muster run --from-checkpoint)"
    )
    return _end(snapshot, "Failed", CHECKPOINTS_BAD, message, now)


def cannot_start(snapshot: JobSnapshot, evidence: Evidence, now: float) -> list[Action]:
    """End a job that no node can start. Another attempt would fail in the same way."""
    status = snapshot.job.status
    message = f"no node of the job can start it: {evidence.message}"
    fault = Fault(
        attempt=status.attempt,
        slot=evidence.slot,
        node=evidence.node,
        cause=row_of(evidence).cause,
        rule=row_of(evidence).id,
        message=builder.shortened(message),
        time=builder.at(now),
    )
    job = replace(snapshot.job, status=builder.with_fault(status, fault))
    return _end(replace(snapshot, job=job), "Failed", "CannotStart", message, now)


def useful(status: TrainingJobStatus, progress: Progress, now: float) -> TrainingJobStatus | None:
    """Return the status if the program has just passed the step of the newest fault; None otherwise."""
    fault = status.faults[-1] if status.faults else None
    if fault is None or fault.timeline is None or fault.timeline.running is None or fault.timeline.useful is not None:
        return None
    if fault.step is not None and progress.step <= fault.step:
        return None
    moment = min(progress.time.timestamp(), now) if progress.time is not None else now
    began = fault.timeline.fault or fault.timeline.detected
    status = builder.with_stage(status, "useful", moment)
    took_s = round(max(0.0, moment - began.timestamp()), 3) if began is not None else None
    message = f"attempt {status.attempt} passed step {progress.step}" + (
        f", {took_s:.1f} s after the fault" if took_s else ""
    )
    return replace(status, progress=progress, time_to_useful_seconds=took_s, message=message)


def _succeeded(snapshot: JobSnapshot, slots: Sequence[Slot]) -> bool:
    """Returns whether the attempt succeeded.

    With mpi the recorded launcher's end counts for all ranks. Without a known launcher, every node must have succeeded.
    """
    status, part = snapshot.job.status, taking_part(snapshot, slots)
    record = run_record.recorded(status)
    if (record.launcher if record is not None else snapshot.job.spec.launcher) == "mpi":
        launcher = run_record.launcher(status, part)
        if launcher is not None:
            return _finished_well(snapshot, launcher)
    return bool(part) and all(_finished_well(snapshot, slot) for slot in part)


def _finished_well(snapshot: JobSnapshot, slot: Slot) -> bool:
    attempt, member = snapshot.job.status.attempt, slot.member
    if member is None:
        return snapshot.ended.get(slot.number) == attempt
    return member.attempt == attempt and finished_well(member)


def _end(snapshot: JobSnapshot, phase: str, reason: Reason, message: str, now: float) -> list[Action]:
    job = snapshot.job
    generation, good = job.metadata.generation, phase == "Succeeded"
    status = replace(
        backfilled.left(job.status),
        phase="Succeeded" if good else "Failed",
        progress=snapshot.progress or job.status.progress,
        completion_time=builder.at(now),
        observed_generation=generation,
        message=builder.shortened(message),
    )
    status = builder.with_condition(status, "Running", False, reason, message, now, generation)
    status = builder.with_condition(status, "Complete" if good else "Failed", True, reason, message, now, generation)
    return [WriteStatus(builder.fitted(status), reason), RecordEvent(reason, message, warning=not good)]
