"""Chooses the checkpoint an attempt starts from: the newest confirmed one that the nodes still see.

The job's status lists the newest confirmed checkpoints. While an attempt is prepared, every supervisor checks which
of them exist, and reports that before it counts as joined. A checkpoint counts as gone if every node of the attempt
reports it missing. If there is no clear answer (a URL, a folder that does not answer, or a supervisor of an earlier
version), the checkpoint counts as present. The choice is written together with phase Running, so all ranks and a
new leader use the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from muster.api.checkpoint_dir import attempt_in
from muster.api.run_record import HandedCheckpoint
from muster.api.store_url import is_url
from muster.api.training_job_status import CHECKPOINTS_MAX, CheckpointSource, CheckpointStatus, TrainingJobStatus
from muster.trainingjobs.faults.rules import Evidence
from muster.trainingjobs.plan import RecordEvent
from muster.trainingjobs.pods.slots import Slot
from muster.trainingjobs.snapshot import JobSnapshot
from muster.trainingjobs.status import builder

PATHS_CHARS_MAX: Final = 4096
"""Limit for the total length of the listed paths: a status may have 16 KB."""
_NAMED: Final = 3
_GONE_HERE_RULE: Final = "checkpoint-gone-here"
_GONE_RULES: Final = ("checkpoint-gone", _GONE_HERE_RULE, "checkpoints-lost-here")
_MISSING_SHOWS_AS: Final = ("rank-failed", "rank-crashed")
"""Rules of faults that a missing checkpoint explains, if the program could not read it."""
_CHARGED_SO_MAX: Final = 3
"""Most faults in a status that are charged to a missing checkpoint."""
LOOK_S: Final = 10.0
"""A supervisor reports within this time which checkpoints exist (supervisor/attempts/checkpoints.py)."""


class Choice(msgspec.Struct, frozen=True):
    """The checkpoint an attempt starts from.

    Attributes:
        status: the status, with the chosen checkpoint as its newest.
        event: the Event to record; None if there is nothing to report.
        problem: why the job cannot start; "" if it can.
        bad: the same if its checkpoints are damaged.
    """

    status: TrainingJobStatus
    event: RecordEvent | None = None
    problem: str = ""
    bad: str = ""


def with_newest(status: TrainingJobStatus, newest: CheckpointStatus) -> tuple[CheckpointStatus, ...]:
    """Return the list with one more checkpoint. If it is too long, the oldest one is dropped."""
    kept, chars = [newest], len(newest.path)
    for each in known(status):
        chars += len(each.path)
        if each.path != newest.path and len(kept) < CHECKPOINTS_MAX and chars <= PATHS_CHARS_MAX:
            kept.append(each)
    return tuple(kept)


def known(status: TrainingJobStatus) -> tuple[CheckpointStatus, ...]:
    """The confirmed checkpoints without quarantined ones, newest first.

    For a job of an earlier version only the last one is known.
    """
    bad = {each.path for each in status.quarantined_checkpoints}
    return tuple(each for each in _confirmed(status) if each.path not in bad)


def _confirmed(status: TrainingJobStatus) -> tuple[CheckpointStatus, ...]:
    last = status.last_checkpoint
    if last is None:
        return ()
    if status.checkpoints and status.checkpoints[0].path == last.path:
        return status.checkpoints
    return (last, *(each for each in status.checkpoints if each.path != last.path))[:CHECKPOINTS_MAX]


def is_of_older_attempt(status: TrainingJobStatus, path: str) -> bool:
    """Returns whether the path names a checkpoint that an older attempt wrote and that was never confirmed.

    Only the attempt that wrote a checkpoint may confirm it: a newer one cannot know whether it is complete.
    """
    wrote = attempt_in(path)
    return wrote is not None and 0 < wrote < status.attempt and all(each.path != path for each in known(status))


def to_look_at(status: TrainingJobStatus) -> tuple[str, ...]:
    """The paths whose presence the supervisors report before an attempt starts."""
    return tuple(each.path for each in known(status))


def awaited(snapshot: JobSnapshot) -> str:
    """Returns why a job that starts from another job's checkpoint must wait; "" if it can start."""
    source = snapshot.source
    if snapshot.job.status.attempt > 0 or source is None or source.status.last_checkpoint is not None:
        return ""
    if source.status.completion_time is not None:
        return (
            f"job {source.name} has ended without a checkpoint that can be restored; delete this job, and name another "
            "checkpoint"
        )
    return f"job {source.name} has not confirmed a checkpoint yet; this job starts from its first one"


def with_source(snapshot: JobSnapshot, status: TrainingJobStatus) -> TrainingJobStatus:
    """Return the status of the first attempt, with its starting checkpoint as far as objects show it."""
    spec, source = snapshot.job.spec.checkpoint, snapshot.source
    first = snapshot.job.status.attempt <= 0
    if not first or spec is None or spec.from_ is None or status.checkpoint_source is not None:
        return status
    if source is not None:
        theirs = tuple(replace(each, attempt=0, time=None) for each in known(source.status))
        name = CheckpointSource(job=source.name, uid=source.uid, path=theirs[0].path, step=theirs[0].step)
        return replace(status, checkpoint_source=name, checkpoints=theirs, last_checkpoint=theirs[0])
    if is_url(spec.from_.path):
        return _from(status, CheckpointSource(path=spec.from_.path))
    return replace(status, checkpoint_source=CheckpointSource(job=spec.from_.job))


def choose(snapshot: JobSnapshot, part: Sequence[Slot]) -> Choice:
    """Chooses the checkpoint for the attempt that is about to run on these slots, which have all joined."""
    status, event = snapshot.job.status, None
    own = _found(part, snapshot.job.uid)
    if own is not None and any(each.path == own.path for each in status.quarantined_checkpoints):
        own = None
    if own is not None and not any(each.attempt for each in known(status)):
        saved = _written(own, status)
        status = replace(status, checkpoints=with_newest(status, saved), last_checkpoint=saved)
        text = f"the status had lost its checkpoints; its folder holds a confirmed one of step {own.step}: {own.path}"
        event = RecordEvent("CheckpointRecovered", text, warning=True)
    elif status.checkpoint_source is not None and not status.checkpoint_source.path:
        found = _found(part)
        if found is None:
            return Choice(status, problem=_not_found(snapshot))
        status = _from(status, found)
    if event is None and status.checkpoint_source and status.last_checkpoint and not status.ran_attempt:
        event = RecordEvent("ContinuesFrom", _continues(status.checkpoint_source))
    every = known(status)
    if own is not None and all(each.path != own.path for each in every):
        every = (*every, _written(own, status))  # older than all listed ones: a program may keep more checkpoints
    chosen = next((each for each in every if not is_gone(each.path, part, status.attempt)), None)
    fault, said = builder.restart_fault(status), "confirmed checkpoints are gone, as every node reports"
    if fault is not None and fault.rule == _GONE_HERE_RULE:  # the same node would fail again
        shared = next((each for each in every if seen_everywhere(each.path, part, status.attempt)), None)
        if shared not in (None, chosen):
            chosen, said = shared, f"confirmed checkpoints are gone on {fault.node}"
    if chosen is None and status.quarantined_checkpoints:
        bad = status.quarantined_checkpoints[-1]
        return Choice(status, bad=f"the checkpoint of step {bad.step} cannot be restored ({bad.message}; {bad.path})")
    gone = every if chosen is None else every[: every.index(chosen)]
    if not gone:
        return Choice(status, event)
    listed = ", ".join(f"step {each.step} ({each.path})" for each in gone[:_NAMED])
    listed += f" and {len(gone) - _NAMED} more" if len(gone) > _NAMED else ""
    lost = f"{said}: {listed}"
    if chosen is not None:
        status = replace(status, checkpoints=every[len(gone) :], last_checkpoint=chosen)
        text = f"{lost}; attempt {status.attempt} starts from the next older one: step {chosen.step} ({chosen.path})"
        return Choice(status, RecordEvent("CheckpointGone", text, warning=True))
    if status.checkpoint_source is not None:
        return Choice(
            status, problem=f"{lost}; no checkpoint is left, neither its own nor of the job that it continues"
        )
    status = replace(status, checkpoints=(), last_checkpoint=None)
    text = f"{lost}; no other is left, so attempt {status.attempt} starts from the BEGINNING"
    return Choice(status, RecordEvent("CheckpointGone", text, warning=True))


def of_others(status: TrainingJobStatus, snapshot: JobSnapshot, part: Sequence[Slot]) -> RecordEvent | None:
    """Reports checkpoints of other jobs that a job without any ignores; None if there are none."""
    seen = next((slot.member.others for slot in part if slot.member is not None and slot.member.others), ())
    spec = snapshot.job.spec.checkpoint
    if status.last_checkpoint is not None or not seen or spec is None:
        return None
    listed = "; ".join(
        f"of {f'job {each.job}' if each.job else 'a program without records'}, step {each.step} ({each.path})"
        for each in seen
    )
    text = (
        f"{spec.path} holds checkpoints {listed}. This job starts from the beginning, in {status.checkpoint_dir}, and "
        f"leaves them alone. To continue from the first: --from-checkpoint {seen[0].path}"
    )
    return RecordEvent("OtherCheckpoints", builder.shortened(text))


def vanished(snapshot: JobSnapshot, part: Sequence[Slot]) -> Evidence | None:
    """Return evidence that the newest fault's attempt could not read its checkpoint; None without such evidence.

    The nodes had seen it before that attempt began. Now no node sees it, or the node where the rank failed does not. A
    program that deletes its own checkpoints gains few restarts: the number of faults charged in this way is limited.
    """
    status = snapshot.job.status
    handed = _doubted(status)
    if handed is None:
        return None
    fault = status.faults[-1]
    reason, where = "", "gone, as every node reports"
    if not is_gone(handed.path, part, status.attempt):
        if is_looked_for(snapshot, part) or not handed.seen_everywhere:
            return None
        slot = next((slot for slot in part if (slot.number, slot.node) == (fault.slot, fault.node)), None)
        if slot is None or not is_gone(handed.path, [slot], status.attempt):
            return None
        sees_others = any(_sees(slot, each.path, status.attempt) for each in known(status))
        reason = "Here" if sees_others else "NoneHere"
        where = f"gone on {fault.node}" + ("" if sees_others else ", which sees none of the job's checkpoints now")
    message = (
        f"the checkpoint of step {handed.step} that attempt {fault.attempt} began from is {where}: {handed.path}. "
        f"It was there before the attempt began; {fault.message}"
    )
    seen_at = max((slot.member.state_at for slot in part if slot.member is not None), default=0.0)
    return Evidence(
        kind="checkpoint", slot=fault.slot, seen_at=seen_at, node=fault.node, reason=reason, message=message
    )


def seen_everywhere(path: str, part: Sequence[Slot], attempt: int) -> bool:
    """Returns whether every node has searched for the path for this attempt and has found it."""
    return bool(part) and all(_sees(slot, path, attempt) for slot in part)


def is_looked_for(snapshot: JobSnapshot, part: Sequence[Slot]) -> bool:
    """Returns whether some nodes have not reported yet whether the newest fault's checkpoint exists."""
    status = snapshot.job.status
    return _doubted(status) is not None and any(
        slot.member is None or slot.member.attempt < status.attempt or slot.member.looking for slot in part
    )


def _doubted(status: TrainingJobStatus) -> HandedCheckpoint | None:
    """The checkpoint of the failed attempt, if its absence would explain the fault."""
    fault = builder.restart_fault(status)
    if fault is None or fault.checkpoint is None or fault.rule not in _MISSING_SHOWS_AS:
        return None
    charged = sum(each.rule in _GONE_RULES for each in status.faults)
    return fault.checkpoint if charged < _CHARGED_SO_MAX else None


def _written(own: CheckpointSource, status: TrainingJobStatus) -> CheckpointStatus:
    return CheckpointStatus(path=own.path, step=own.step, attempt=max(1, status.attempt - 1))


def _from(status: TrainingJobStatus, source: CheckpointSource) -> TrainingJobStatus:
    first = CheckpointStatus(path=source.path, step=source.step)
    return replace(status, checkpoint_source=source, checkpoints=(first,), last_checkpoint=first)


def _found(part: Sequence[Slot], uid: str = "") -> CheckpointSource | None:
    """Returns the newest checkpoint that the supervisors found; if a UID is given, of that job only.

    Nodes with a folder of their own may differ; the largest step is the newest.
    """
    found = [slot.member.found for slot in part if slot.member is not None and slot.member.found is not None]
    found = [each for each in found if uid in ("", each.uid)]
    return max(found, key=lambda each: (each.step, each.path), default=None)


def is_gone(path: str, part: Sequence[Slot], attempt: int) -> bool:
    """Returns whether every node has searched for the path for this attempt and has not found it."""
    return bool(part) and all(_answer(slot, path, attempt) is False for slot in part)


def _sees(slot: Slot, path: str, attempt: int) -> bool:
    """Returns whether the slot's node has searched for the path for this attempt and has found it."""
    return _answer(slot, path, attempt) is True


def _answer(slot: Slot, path: str, attempt: int) -> bool | None:
    """Returns whether the path exists on the slot's node; None if the node has not reported that for this attempt."""
    member = slot.member
    if member is None or member.attempt != attempt or member.looked is None:
        return None
    return member.looked.get(path)


def _continues(source: CheckpointSource) -> str:
    whose = f"job {source.job}'s checkpoint" if source.job else "the checkpoint"
    return f"starts from {whose} of step {source.step}: {source.path}"


def _not_found(snapshot: JobSnapshot) -> str:
    spec = snapshot.job.spec.checkpoint
    assert spec is not None
    assert spec.from_ is not None
    if spec.from_.path:
        return (
            f"spec.checkpoint.from.path: there is no checkpoint at {spec.from_.path} on any of its nodes; "
            "name a checkpoint, or a folder with confirmed ones, that the nodes mount"
        )
    return (
        f"spec.checkpoint.from.job: there is no job {spec.from_.job} any more, and its nodes see no confirmed "
        f"checkpoint of it below {spec.path}; name the checkpoint or its folder with spec.checkpoint.from.path"
    )
