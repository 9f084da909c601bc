"""What a fault does to a job's status: who is charged, which attempt comes next, what late evidence changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from muster.api.training_job import Fault, Timeline, TrainingJobStatus
from muster.trainingjobs import statuses
from muster.trainingjobs.evidence import hardware
from muster.trainingjobs.faults import HARDWARE_WINDOW_S, Evidence, Verdict, judge, outranks, row_named, row_of
from muster.trainingjobs.slots import Slot
from muster.trainingjobs.snapshot import JobSnapshot

_CLOCK_SKEW_S: Final = 600.0
"""A reporter's own time is believed within this."""


def restart(
    snapshot: JobSnapshot, slots: Sequence[Slot], evidence: Sequence[Evidence], replaced: int, now: float
) -> tuple[TrainingJobStatus, Verdict]:
    """The status that ends the attempt: the next one's number, the fault, the charge, the nodes to keep away from."""
    job, old = snapshot.job, snapshot.job.status
    nodes = {slots[each.slot].node: each.slot for each in evidence if slots[each.slot].node}
    every = [*evidence, *hardware(snapshot, nodes, now)]
    verdict = judge(every)
    assert verdict is not None, "an incident has evidence"
    first = verdict.evidence
    fault = Fault(
        attempt=old.attempt,
        slot=first.slot,
        node=first.node or slots[first.slot].node,
        cause=verdict.cause,
        rule=verdict.row.id,
        message=statuses.shortened(_message(verdict)),
        time=statuses.at(_happened(first, now)),
        step=_step(snapshot),
        steps_lost=_steps_lost(snapshot),
        slots=replaced,
        timeline=Timeline(fault=statuses.at(_happened(first, now)), detected=statuses.at(now)),
    )
    status = replace(
        old,
        attempt=old.attempt + 1,
        phase="Restarting",
        restarts=statuses.charged(old.restarts, verdict.cause),
        progress=snapshot.progress or old.progress,
        slots_kept=job.spec.replicas - replaced,
        time_to_useful_seconds=None,
        message=f"attempt {old.attempt} ended ({verdict.row.id}, slot {first.slot}); restarting as attempt "
        f"{old.attempt + 1}",
    )
    status = statuses.excluding(statuses.with_fault(status, fault), _excluded(every))
    status = statuses.with_condition(
        status, "Running", False, "Restarting", fault.message, now, job.metadata.generation
    )
    return statuses.fitted(status), verdict


def reattributed(
    snapshot: JobSnapshot, slots: Sequence[Slot], evidence: Sequence[Evidence], now: float
) -> TrainingJobStatus | None:
    """The status after late evidence about the newest fault: another cause, the charge moved. None: nothing changes.

    Nodes that later evidence shows to be bad are excluded even where the cause stays.
    """
    old = snapshot.job.status
    if not old.faults or old.faults[-1].time is None:
        return None
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
    status = statuses.excluding(old, _excluded(every)) if set(_excluded(every)) - set(old.excluded_nodes) else old
    if outranks(verdict.row, row_named(fault.rule)):
        restarts = statuses.charged(statuses.charged(old.restarts, fault.cause, -1), verdict.cause)
        better = replace(
            fault,
            cause=verdict.cause,
            rule=verdict.row.id,
            slot=verdict.evidence.slot,
            node=verdict.evidence.node or fault.node,
            message=statuses.shortened(_message(verdict)),
        )
        status = replace(statuses.with_newest_fault(status, better), restarts=restarts)
    return statuses.fitted(status) if status is not old else None


def _excluded(evidence: Sequence[Evidence]) -> tuple[str, ...]:
    return tuple(each.node for each in evidence if each.node and row_of(each).exclude)


def _happened(evidence: Evidence, now: float) -> float:
    """When it happened: the reporter's time where it can be right, else when it was first seen."""
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
        head = f"{who} ({where}) ended with {how}"
    else:
        head = f"{where}: {evidence.reason or evidence.kind}"
    return f"{head}: {evidence.message}" if evidence.message else head


def _step(snapshot: JobSnapshot) -> int | None:
    progress = snapshot.progress or snapshot.job.status.progress
    return progress.step if progress is not None else None


def _steps_lost(snapshot: JobSnapshot) -> int | None:
    step, checkpoint = _step(snapshot), snapshot.job.status.last_checkpoint
    if step is None:
        return None
    return max(0, step - (checkpoint.step if checkpoint is not None else 0))
