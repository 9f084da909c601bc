"""Recovers jobs whose status contradicts existing objects, for example after a manual edit: begins a new attempt.

No budget is charged. The status may be wrong in two ways:

- pods, supervisors or other fields of the status name a later attempt than `status.attempt`;
- ranks began although the phase says that they did not.

Supervisors ignore an attempt with an older number. So the next attempt gets a number that is larger than all known
numbers.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from muster.api.training_job import TrainingJob
from muster.api.training_job_status import Phase
from muster.trainingjobs.attempts import run_record
from muster.trainingjobs.plan import Action, RecordEvent, WriteStatus
from muster.trainingjobs.pods.node_use import used_by
from muster.trainingjobs.pods.slots import attempt_of
from muster.trainingjobs.snapshot import JobSnapshot, Member
from muster.trainingjobs.status import builder

_NUMBER_MAX: Final = 10**9
"""A controller never uses a larger number than this."""
_ENDS: Final[dict[Phase, builder.ConditionType]] = {"Succeeded": "Complete", "Failed": "Failed"}
"""The condition that is True in each final phase."""


def newest_attempt(snapshot: JobSnapshot) -> int:
    """The largest attempt number in the status, the pods and the supervisors' reports; 0 without one."""
    status = snapshot.job.status
    known = [0, status.attempt, status.ran_attempt, *(fault.attempt for fault in status.faults)]
    if status.run is not None:
        known.append(status.run.attempt)
    if status.last_checkpoint is not None:
        known.append(status.last_checkpoint.attempt)
    if status.backfill is not None and status.backfill.request is not None:
        known.append(status.backfill.request.attempt)
    known += [attempt_of(pod) for pod in snapshot.pods]
    known += [member.attempt for member in snapshot.members.values()]
    return max(number for number in known if number < _NUMBER_MAX)


def readable(job: TrainingJob) -> TrainingJob:
    """Return the job without impossible slot numbers in `status.leftOut`."""
    status = job.status
    left_out = tuple(sorted({slot for slot in status.left_out if 0 <= slot < job.spec.replicas}))
    return job if left_out == status.left_out else replace(job, status=replace(status, left_out=left_out))


def end(snapshot: JobSnapshot, now: float) -> list[Action]:
    """Correct a phase that contradicts the condition and completion time. Does nothing if they agree.

    The controller writes phase, condition and completion time of an ended job together. So editing only the phase
    neither stops nor starts ranks.
    """
    job, status = snapshot.job, snapshot.job.status
    written = next((phase for phase, kind in _ENDS.items() if builder.condition_holds(status, kind)), None)
    if written is not None and status.completion_time is not None:
        return _corrected(job, written) if status.phase != written else []
    if status.phase not in _ENDS or written is not None or status.completion_time is not None:
        return []
    if run_record.recorded(status) is not None and builder.condition_holds(status, "Running"):
        return _corrected(job, "Running")
    if status.attempt <= 0:
        return _corrected(job, "Pending")
    return restart(snapshot, _changed(status.phase, "the job has not ended"), now)


def _corrected(job: TrainingJob, phase: Phase) -> list[Action]:
    why = _changed(job.status.phase, f"the job is {phase}")
    status = replace(job.status, phase=phase, message=why)
    return [WriteStatus(builder.fitted(status), "StatusLost"), RecordEvent("StatusLost", why, warning=True)]


def _changed(phase: Phase, truth: str) -> str:
    return f"the status was changed: it said {phase}, and {truth}"


def begin(snapshot: JobSnapshot, now: float) -> list[Action]:
    """Begin a new attempt if the status contradicts the pods and supervisors. Does nothing if they agree."""
    why = _contradiction(snapshot, newest_attempt(snapshot))
    return restart(snapshot, why, now) if why else []


def wiped(newest: int) -> RecordEvent:
    """Reports that a status says that the job never began, although attempts up to `newest` are known."""
    why = f"{_earlier(0, newest)}; the job starts again as attempt {newest + 1}, not charged"
    return RecordEvent("StatusLost", why, warning=True)


def restart(snapshot: JobSnapshot, why: str, now: float) -> list[Action]:
    """Begin another attempt without charging a budget."""
    job, newest = snapshot.job, newest_attempt(snapshot)
    status = replace(builder.next_attempt(job, replace(job.status, attempt=newest)), phase="Restarting")
    status = replace(status, node_use=status.node_use or used_by(snapshot.pods, job.spec.gpu_resource))
    status = replace(status, ready_slots=0, message=f"{why}; restarting as attempt {status.attempt}, not charged")
    status = builder.with_condition(status, "Running", False, "StatusLost", why, now, job.metadata.generation)
    return [WriteStatus(builder.fitted(status), "StatusLost"), RecordEvent("StatusLost", why, warning=True)]


def _contradiction(snapshot: JobSnapshot, newest: int) -> str:
    status = snapshot.job.status
    if newest > status.attempt:
        return _earlier(status.attempt, newest)
    began = any(each.attempt == status.attempt and _has_begun(each) for each in snapshot.members.values())
    if began and status.phase != "Running":
        return f"the status was changed: it says {status.phase}, and ranks of attempt {status.attempt} were started"
    return ""


def _earlier(attempt: int, newest: int) -> str:
    return f"the status was changed: it says attempt {attempt}, and attempt {newest} has been there"


def _has_begun(member: Member) -> bool:
    """Returns whether the supervisor started its ranks. A supervisor that ends before that reports stopping too."""
    return member.state != "idle" and (member.state != "stopping" or member.node_rank >= 0)
