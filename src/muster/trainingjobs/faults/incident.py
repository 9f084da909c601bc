"""Applies a fault to a job's status: charges a budget, begins the next attempt, and handles late evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from msgspec.structs import replace

from muster.api.run_record import HandedCheckpoint
from muster.api.training_job import TrainingJob
from muster.api.training_job_status import Fault, Timeline, TrainingJobStatus
from muster.trainingjobs.attempts import backoff, run_record
from muster.trainingjobs.faults.evidence import hardware
from muster.trainingjobs.faults.rules import (
    HARDWARE_WINDOW_S,
    Evidence,
    Verdict,
    judge,
    order_at,
    outranks,
    row_named,
    row_of,
)
from muster.trainingjobs.pods.slots import Slot, taking_part
from muster.trainingjobs.snapshot import SETTLE_S, JobSnapshot, Member
from muster.trainingjobs.status import builder

_CLOCK_SKEW_S: Final = 600.0
"""A reporter's time is used if it differs from the controller's by less than this."""
_SAME_S: Final = 0.001
_RECONNECT_S: Final = 0.2
_CONSEQUENCE_TIER: Final = 6
"""Evidence of this tier and above is a consequence of a failure elsewhere."""


def restart(
    snapshot: JobSnapshot, slots: Sequence[Slot], evidence: Sequence[Evidence], replaced: int, now: float
) -> tuple[TrainingJobStatus, Verdict]:
    """Return the status that ends the attempt: the next attempt's number, the fault, the charge, the excluded nodes."""
    job, old = snapshot.job, snapshot.job.status
    nodes = {slots[each.slot].node: each.slot for each in evidence if slots[each.slot].node}
    every = [*evidence, *hardware(snapshot, nodes, now)]
    verdict = judge(every)
    assert verdict is not None, "an incident has evidence"
    first = verdict.evidence
    at, suspicion = _where(verdict, slots[verdict.evidence.slot], taking_part(snapshot, slots), now)
    fault = Fault(
        attempt=old.attempt,
        slot=at.number,
        node=first.node if at.number == first.slot and first.node else at.node,
        cause=verdict.cause,
        rule=verdict.row.id,
        message=builder.shortened(_message(verdict) + suspicion),
        time=builder.at(_happened(first, now)),
        step=_step(snapshot),
        steps_lost=_steps_lost(snapshot),
        slots=replaced,
        checkpoint=_unread(snapshot),
        timeline=Timeline(fault=builder.at(_happened(first, now)), detected=builder.at(now)),
    )
    status = replace(
        builder.next_attempt(job, old),
        phase="Restarting",
        restarts=builder.charged(old.restarts, verdict.cause),
        backoff=backoff.after_fault(old, verdict.cause, snapshot.progress or old.progress, now),
        progress=snapshot.progress or old.progress,
        slots_kept=(old.size or job.spec.replicas) - replaced,
        time_to_useful_seconds=None,
    )
    status = builder.excluding(builder.with_fault(status, fault), _excluded(every))
    reason = reason_of(job, status)
    status = replace(status, message=_what_follows(job, status))
    status = builder.with_condition(status, "Running", False, reason, fault.message, now, job.metadata.generation)
    return builder.fitted(status), verdict


def reason_of(job: TrainingJob, status: TrainingJobStatus) -> Literal["Restarting", "AttemptEnded"]:
    """Return the reason for the end of an attempt. It announces no restart if only late evidence can lead to one."""
    return "Restarting" if builder.exhausted(replace(job, status=status)) is None else "AttemptEnded"


def _what_follows(job: TrainingJob, status: TrainingJobStatus) -> str:
    """Return the status's message after a fault.

    `status.attempt` is the next one's number even if a budget is used up: reports of the ended attempt are then
    refused. Late evidence may also move the charge, so that the job restarts after all.
    """
    fault, exhausted = status.faults[-1], builder.exhausted(replace(job, status=status))
    ended = f"attempt {fault.attempt} ended ({fault.rule}, slot {fault.slot})"
    if exhausted is None:
        held = backoff.said(status) if fault.cause == "user" else ""
        return f"{ended}; {held or f'restarting as attempt {status.attempt}'}"
    return f"{ended}; {builder.budget_used_up(exhausted)}: the job fails unless another cause shows soon"


def reattributed(
    snapshot: JobSnapshot, slots: Sequence[Slot], evidence: Sequence[Evidence], now: float
) -> TrainingJobStatus | None:
    """Return the status after late evidence has changed the cause of the newest fault; None without a change.

    If late evidence is about a broken node, the node is excluded even if the cause stays the same.
    """
    old = snapshot.job.status
    if not old.faults or old.faults[-1].time is None or not 0 <= old.faults[-1].slot < len(slots):
        return None  # the job may have been resumed with fewer nodes since
    fault = old.faults[-1]
    fault_time = fault.time.timestamp() if fault.time is not None else now
    every = list(evidence)
    if now - fault_time <= HARDWARE_WINDOW_S:
        nodes = {fault.node: fault.slot} if fault.node else {}
        nodes.update({slots[each.slot].node: each.slot for each in evidence if slots[each.slot].node})
        every += hardware(snapshot, nodes, fault_time)
    verdict = judge(every)
    if verdict is None:
        return None
    status = builder.excluding_more(old, _excluded(every))
    recorded = row_named(fault.rule)
    earlier = verdict.row.tier == recorded.tier and _was_first(verdict, snapshot, now)
    if earlier or outranks(verdict.row, recorded):
        restarts = builder.charged(builder.charged(old.restarts, fault.cause, -1), verdict.cause)
        better = replace(
            fault,
            cause=verdict.cause,
            rule=verdict.row.id,
            slot=verdict.evidence.slot,
            node=verdict.evidence.node or slots[verdict.evidence.slot].node,
            message=builder.shortened(_message(verdict)),
        )
        if earlier:
            at = builder.at(order_at(verdict.evidence))
            better = replace(better, time=at, timeline=replace(fault.timeline or Timeline(), fault=at))
        status = replace(builder.with_newest_fault(status, better), restarts=restarts)
        status = backoff.attributed(status, fault.cause, verdict.cause, now)
        if old.phase == "Restarting" and reason_of(snapshot.job, old) != reason_of(snapshot.job, status):
            status = replace(status, message=_what_follows(snapshot.job, status))
    status = builder.fitted(status)
    return status if status != old else None


def _where(verdict: Verdict, own: Slot, slots: Sequence[Slot], now: float) -> tuple[Slot, str]:
    """Return the slot to name and what happened there.

    If only consequences are known, it is a slot that just lost contact.

    Evidence of kind contact shows within moments if that supervisor is lost; only then is the fault charged to it.
    """
    if verdict.row.tier < _CONSEQUENCE_TIER:
        return own, ""
    cut = [each for each in slots if each.member is not None and _cut_off(each.member, now)]
    if not cut:
        return own, ""
    names = ", ".join(f"slot {each.number} on {each.node}" for each in cut[:4])
    return cut[0], f"; the connection to {names} broke"


def _cut_off(member: Member, now: float) -> bool:
    """Returns whether a connection broke and the supervisor did not report again at once on another connection."""
    return member.cut and member.silent_since is not None and now - member.silent_since > _RECONNECT_S


def _was_first(verdict: Verdict, snapshot: JobSnapshot, now: float) -> bool:
    """Returns whether evidence that arrived just after the decision happened before the evidence that decided."""
    fault = snapshot.job.status.faults[-1]
    detected = fault.timeline.detected if fault.timeline is not None else None
    if detected is None or fault.time is None or verdict.evidence.kind != "rank":
        return False
    if now - detected.timestamp() > SETTLE_S:
        return False
    return order_at(verdict.evidence) < fault.time.timestamp() - _SAME_S


def _excluded(evidence: Sequence[Evidence]) -> tuple[str, ...]:
    return tuple(each.node for each in evidence if each.node and row_of(each).exclude)


def _happened(evidence: Evidence, now: float) -> float:
    """The time of the evidence: the reporter's own time if plausible, else when the controller first saw it."""
    for moment in (evidence.time, evidence.seen_at):
        if 0 < moment <= now and now - moment < _CLOCK_SKEW_S:
            return moment
    return now


def _message(verdict: Verdict) -> str:
    evidence = verdict.evidence
    where = f"slot {evidence.slot}" + (f" on {evidence.node}" if evidence.node else "")
    if evidence.kind in ("rank", "launcher"):
        who = f"rank {evidence.rank}" if evidence.kind == "rank" else "the launcher"
        how = f"signal {evidence.signal}" if evidence.signal else f"exit code {evidence.code}"
        more = " (out of memory, killed by the kernel)" if evidence.reason == "OutOfMemory" else ""
        head = f"{who} ({where}) ended with {how}{more}"
        lines = evidence.message.splitlines()
        if len(lines) > 1:  # lists show only the first line: use the program's last line, unless the program was killed
            said = f": {lines[-1].strip()}" if not evidence.signal else ""
            return f"{head}{said}\nits last lines:\n{evidence.message}"
        if evidence.signal and lines:
            return f"{head}\nits last line:\n{evidence.message}"
    elif evidence.kind == "start":
        head = where
    elif evidence.kind in ("stall", "checkpoint"):
        return evidence.message
    else:
        head = f"{where}: {evidence.reason or evidence.kind}"
    return f"{head}: {evidence.message}" if evidence.message else head


def _step(snapshot: JobSnapshot) -> int | None:
    progress = snapshot.progress or snapshot.job.status.progress
    return progress.step if progress is not None else None


def _unread(snapshot: JobSnapshot) -> HandedCheckpoint | None:
    """The checkpoint of the attempt, if no report shows that its ranks had read it."""
    status, record = snapshot.job.status, run_record.recorded(snapshot.job.status)
    saved = status.last_checkpoint is not None and status.last_checkpoint.attempt == status.attempt
    if record is None or snapshot.progress is not None or saved:
        return None
    return record.checkpoint


def _steps_lost(snapshot: JobSnapshot) -> int | None:
    step, checkpoint = _step(snapshot), snapshot.job.status.last_checkpoint
    if step is None:
        return None
    return max(0, step - (checkpoint.step if checkpoint is not None else 0))
