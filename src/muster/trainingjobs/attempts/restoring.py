"""Agreement on the checkpoint that an attempt restores: all nodes read the same one, or all go to an older one.

The ranks of each node read and verify their part of the checkpoint. Each node then asks the controller whether the
attempt may train (`POST /v1/restore`), and waits for a verdict:

- go: every node of the attempt has verified the checkpoint;
- older: on some node it was damaged. It is quarantined, and the nodes restore the next older one instead;
- none: no checkpoint is left, and the job fails. It never starts from the beginning because of bad checkpoints;
- fail: the failure is not about the checkpoint. The node's ranks raise their own error, and the attempt ends.

A verdict follows from the status alone. The controller writes the status before it answers, so a new leader gives the
same verdicts. If a node never asks, the attempt ends as for any rank that fails, falls silent or stalls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from muster.api.run_record import HandedCheckpoint, RunRecord
from muster.api.training_job_status import (
    QUARANTINED_MAX,
    CheckpointStatus,
    QuarantinedCheckpoint,
    TrainingJobStatus,
)
from muster.trainingjobs.attempts import checkpoints, outcome, run_record
from muster.trainingjobs.plan import Action, RecordEvent, WriteStatus
from muster.trainingjobs.pods.slots import Slot
from muster.trainingjobs.snapshot import JobSnapshot, RestoreFailure
from muster.trainingjobs.status import builder

VerdictKind = Literal["go", "older", "none", "fail", "wait"]
_MESSAGE_CHARS: Final = 256


class Verdict(msgspec.Struct, frozen=True):
    """What a node does after it has read a checkpoint; `checkpoint` is the next one for `older`."""

    kind: VerdictKind
    checkpoint: HandedCheckpoint | None = None


class NotThisCheckpoint(Exception):
    """Raised for a checkpoint from which the attempt does not start."""


def verdict(status: TrainingJobStatus, path: str) -> Verdict | None:
    """Return the verdict about a checkpoint for the current attempt; None if the nodes have not agreed yet.

    Raises:
        NotThisCheckpoint: the attempt never was to start from this checkpoint.
    """
    if builder.condition_reason(status, "Failed")[0] == outcome.CHECKPOINTS_BAD:
        return Verdict("none")
    record = run_record.recorded(status)
    handed = record.checkpoint if record is not None else None
    if handed is not None and handed.path == path:
        return Verdict("go") if handed.restored is not None else None
    if handed is not None and any(each.path == path for each in status.quarantined_checkpoints):
        return Verdict("older", handed)
    if handed is None and _earlier(status, path) is not None:
        return None  # the record was lost; `follow` restores it
    raise NotThisCheckpoint(path)


def is_damage(failure: RestoreFailure, seen: bool | None) -> bool:
    """Returns whether a node's failure is about the checkpoint.

    `seen` is whether the node had seen the checkpoint before the attempt. If it had not, its own mount is at fault, and
    the usual rules about missing checkpoints apply.
    """
    return not (failure.reason == "Missing" and seen is False)


def follow(snapshot: JobSnapshot, part: Sequence[Slot], now: float) -> list[Action]:
    """Write the result of the agreement when every node has verified the checkpoint, or one found it damaged."""
    status, seen = snapshot.job.status, snapshot.restoring
    record = run_record.recorded(status)
    if seen is None or record is None or seen.attempt != status.attempt:
        return []
    if record.checkpoint is None:
        return _recorded(status, record, seen.path)
    if seen.path != record.checkpoint.path or record.checkpoint.restored is not None:
        return []
    if seen.failure is not None:
        return _older(snapshot, part, record.checkpoint, seen.failure, now)
    return _restored(status, record, now) if seen.nodes >= record.nodes else []


def _recorded(status: TrainingJobStatus, record: RunRecord, path: str) -> list[Action]:
    """Restore a record that lost its checkpoint, from the nodes that ask about it."""
    found = _earlier(status, path)
    if found is None:
        return []
    handed = HandedCheckpoint(path=found.path, step=found.step, manifest=found.manifest)
    return [WriteStatus(builder.fitted(replace(status, run=replace(record, checkpoint=handed))), "Recorded")]


def _restored(status: TrainingJobStatus, record: RunRecord, now: float) -> list[Action]:
    handed = record.checkpoint
    assert handed is not None
    time = builder.at(now)

    def verified(each: CheckpointStatus) -> CheckpointStatus:
        return replace(each, verified_time=time) if each.path == handed.path else each

    last = status.last_checkpoint
    status = replace(
        status,
        run=replace(record, checkpoint=replace(handed, restored=time)),
        checkpoints=tuple(verified(each) for each in status.checkpoints),
        last_checkpoint=verified(last) if last is not None else None,
    )
    fault = builder.restart_fault(status)
    if fault is not None and fault.timeline is not None and fault.timeline.useful is None:
        status = builder.with_stage(status, "restored", now)
    return [WriteStatus(builder.fitted(status), "Restored")]


def _older(
    snapshot: JobSnapshot, part: Sequence[Slot], bad: HandedCheckpoint, failure: RestoreFailure, now: float
) -> list[Action]:
    """Quarantine the checkpoint, and choose the next older one. The job fails if no other is left."""
    status = snapshot.job.status
    listed = checkpoints.known(status)
    wrote = next((each.attempt for each in listed if each.path == bad.path), 0)
    where = f"slot {failure.slot}" + (f" on {failure.node}" if failure.node else "")
    said = builder.shortened(failure.message, _MESSAGE_CHARS)
    entry = QuarantinedCheckpoint(
        path=bad.path,
        step=bad.step,
        attempt=wrote,
        reason=failure.reason,
        message=f"attempt {status.attempt}, {where}: {said}",
        time=builder.at(now),
    )
    left = tuple(each for each in listed if each.path != bad.path)
    status = replace(
        status,
        checkpoints=left,
        last_checkpoint=left[0] if left else None,
        quarantined_checkpoints=_newest((*status.quarantined_checkpoints, entry)),
    )
    what = f"the checkpoint of step {bad.step} cannot be restored ({failure.reason}, {where}): {said} ({bad.path})"
    chosen = next((each for each in left if _is_earlier(each, status) and not _is_gone(each, part, status)), None)
    record = run_record.recorded(status)
    assert record is not None
    if chosen is None:
        ended = outcome.checkpoints_bad(replace(snapshot, job=replace(snapshot.job, status=status)), what, now)
        return [*ended, RecordEvent("CheckpointQuarantined", what, warning=True)]
    handed = HandedCheckpoint(
        path=chosen.path,
        step=chosen.step,
        seen_everywhere=checkpoints.seen_everywhere(chosen.path, part, status.attempt),
        manifest=chosen.manifest,
    )
    text = f"{what}; attempt {status.attempt} restores the one of step {chosen.step} instead: {chosen.path}"
    status = replace(status, run=replace(record, checkpoint=handed), message=builder.shortened(text))
    return [
        WriteStatus(builder.fitted(status), "CheckpointQuarantined"),
        RecordEvent("CheckpointQuarantined", text, warning=True),
    ]


def _newest(entries: Sequence[QuarantinedCheckpoint]) -> tuple[QuarantinedCheckpoint, ...]:
    """The newest entries that a status has room for; enough for all checkpoints that it lists."""
    kept, chars = list[QuarantinedCheckpoint](), 0
    for each in reversed(entries[-QUARANTINED_MAX:]):
        chars += len(each.path)
        if kept and chars > checkpoints.PATHS_CHARS_MAX:
            break
        kept.insert(0, each)
    return tuple(kept)


def _is_earlier(each: CheckpointStatus, status: TrainingJobStatus) -> bool:
    """Returns whether an earlier attempt or another job wrote the checkpoint: the nodes agree before they train."""
    return each.attempt < status.attempt


def _is_gone(each: CheckpointStatus, part: Sequence[Slot], status: TrainingJobStatus) -> bool:
    return checkpoints.is_gone(each.path, part, status.attempt)


def _earlier(status: TrainingJobStatus, path: str) -> CheckpointStatus | None:
    listed = checkpoints.known(status)
    return next((each for each in listed if each.path == path and _is_earlier(each, status)), None)
