"""Detects stalls: a running attempt that does not report, and ranks whose process does not run.

Only reports of the program count. Time counts only while the controller could receive a report: it leads, is not
overloaded, and is in contact with every supervisor of the attempt. After an interruption a report may be delayed, so
time counts again a little later. So an outage, a partition or a paused machine delays a stall and never causes one. The
time is counted in seconds and written to the status at intervals. A new leader continues from there, even if its clock
differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from muster.api.training_job import StallSpec, TrainingJob, TrainingJobSpec
from muster.api.training_job_status import IDLE_RANKS_MAX, Progress, Quiet, RankState, Stall
from muster.api.words import rank_text
from muster.trainingjobs.faults import incident
from muster.trainingjobs.faults.rules import Evidence
from muster.trainingjobs.faults.table import STALLED
from muster.trainingjobs.plan import Action, RecordEvent, WriteStatus
from muster.trainingjobs.pods.slots import Clock, Slot, in_contact, taking_part
from muster.trainingjobs.snapshot import JobSnapshot, Watched
from muster.trainingjobs.status import builder

SETTLE_S: Final = 45.0
"""After an interruption a report arrives within this time: the SDK retries every 15 s, and each try takes at most 15
s.
"""
STACKS_S: Final = 5.0
"""Time for supervisors to collect stacks between a stall and the end of its attempt."""
_PARTS: Final = 4
"""How many times the length is written before the limit."""
_LOOK_S: Final = 10.0
_PAUSE_S: Final = 15.0
"""If this process was too slow for this long, requests of the SDK have timed out."""
_TRACE_LINES: Final = 8
_TRACE_CHARS: Final = 900
_STATES: Final = ("stopped", "zombie", "gone")


def watched(old: Watched | None, snapshot: JobSnapshot, slots: Sequence[Slot], now: float) -> Watched | None:
    """Count how long the running attempt has not reported, continuing from `old`."""
    status = snapshot.job.status
    if status.phase != "Running":
        return None
    progress = newest(snapshot)
    at, step = (progress.time, progress.step) if progress is not None else (None, None)
    if old is None or old.attempt != status.attempt:
        kept = status.quiet
        same = kept is not None and (kept.attempt, kept.step) == (status.attempt, step)
        seconds = kept.seconds if kept is not None and same else 0.0
        from_ = max(now, snapshot.leading_since + SETTLE_S)
        return Watched(attempt=status.attempt, reported_at=at, step=step, seconds=seconds, at=now, from_=from_)
    if (at, step) != (old.reported_at, old.step):
        return Watched(attempt=status.attempt, reported_at=at, step=step, at=now, from_=now)
    strained = snapshot.strained_at >= old.at
    if not _listens(snapshot, slots, now) or (strained and now - old.at > _PAUSE_S):
        return replace(old, at=now, from_=now + SETTLE_S)
    if strained:
        return replace(old, at=now)
    return replace(old, seconds=old.seconds + max(0.0, now - max(old.at, old.from_)), at=now)


def newest(snapshot: JobSnapshot) -> Progress | None:
    """The newest report of the current attempt, received by this process or by an earlier leader."""
    status = snapshot.job.status
    if snapshot.progress is not None:
        return snapshot.progress
    return status.progress if status.progress is not None and status.progress.attempt == status.attempt else None


def limit_s(spec: TrainingJobSpec, progress: Progress | None) -> float | None:
    """Returns the longest time without a report; None if the attempt has no limit."""
    stall = spec.stall or StallSpec()
    if progress is None:
        return stall.first_step_seconds
    return max(float(stall.after_seconds), stall.step_times * (progress.step_seconds or 0.0))


def is_stalled(job: TrainingJob) -> bool:
    """Returns whether the status says that the running attempt is stalled."""
    status = job.status
    return status.phase == "Running" and status.stall is not None and status.stall.attempt == status.attempt


def tend(snapshot: JobSnapshot, slots: Sequence[Slot], clock: Clock) -> list[Action]:
    """Write changes: ranks that do not run, the begin or end of a stall, the length so far."""
    part = taking_part(snapshot, slots)
    return _idle_ranks(snapshot, part) or _stall(snapshot, slots, part, clock)


def _listens(snapshot: JobSnapshot, slots: Sequence[Slot], now: float) -> bool:
    """Returns whether this process is in contact with the supervisors of all slots."""
    return snapshot.contact_trusted and all(
        in_contact(slot, now)
        and slot.member is not None
        and slot.member.state in ("running", "finished")
        and slot.pod is not None
        and not slot.pod.terminating
        for slot in taking_part(snapshot, slots)
    )


def _idle_ranks(snapshot: JobSnapshot, part: Sequence[Slot]) -> list[Action]:
    job, status = snapshot.job, snapshot.job.status
    if any(slot.member is None for slot in part):
        return []  # not all supervisors have reported to a new leader yet
    found = [
        RankState(rank=each.rank, state=each.state, slot=slot.number, node=slot.node)  # type: ignore[arg-type]
        for slot in part
        if slot.member is not None and slot.member.attempt == status.attempt and slot.member.state == "running"
        for each in slot.member.idle
        if each.state in _STATES
    ]
    idle = tuple(sorted(found, key=lambda each: each.rank)[:IDLE_RANKS_MAX])
    if idle == status.idle_ranks:
        return []
    actions: list[Action] = [WriteStatus(builder.fitted(replace(status, idle_ranks=idle)), "RankIdle")]
    fresh = [each for each in idle if each not in status.idle_ranks]
    if fresh:
        text = "; ".join(rank_text(each) for each in fresh[:4])
        actions.append(RecordEvent("RankIdle", f"{text}: the other ranks wait for it", warning=True))
    elif not idle:
        actions.append(RecordEvent("RankRuns", f"all ranks of attempt {job.status.attempt} run again"))
    return actions


def _stall(snapshot: JobSnapshot, slots: Sequence[Slot], part: Sequence[Slot], clock: Clock) -> list[Action]:
    job, status, count = snapshot.job, snapshot.job.status, snapshot.quiet
    progress = newest(snapshot)
    limit = limit_s(job.spec, progress)
    if count is None or count.attempt != status.attempt:
        return []
    if status.stall is not None and (status.stall.attempt != status.attempt or _has_resumed(status.stall, progress)):
        return _ended(snapshot, progress)
    if limit is None:
        return []
    restarts = (job.spec.stall or StallSpec()).action == "Restart"
    due_s = limit if status.stall is None else limit + STACKS_S
    if status.stall is not None and not restarts:
        return []
    if count.seconds >= due_s:
        return _restart(snapshot, slots, clock.now) if status.stall else _begun(snapshot, part, progress, limit, clock)
    clock.passed(min(max(clock.now, count.from_) + due_s - count.seconds, clock.now + min(_LOOK_S, limit / _PARTS)))
    return _kept(snapshot, limit) if status.stall is None else []


def _has_resumed(stall: Stall, progress: Progress | None) -> bool:
    """Returns whether the program has reported since the stall began."""
    return progress is not None and progress.time is not None and (stall.since is None or progress.time > stall.since)


def _kept(snapshot: JobSnapshot, limit: float) -> list[Action]:
    """Write the length at each quarter of the limit."""
    status, count = snapshot.job.status, snapshot.quiet
    assert count is not None
    kept = status.quiet
    same = kept is not None and (kept.attempt, kept.step) == (count.attempt, count.step)
    written = kept.seconds if kept is not None and same else 0.0
    if -1.0 < count.seconds - written < limit / _PARTS:
        return []
    return [WriteStatus(builder.fitted(replace(status, quiet=_length(count))), "Quiet")]


def _length(count: Watched) -> Quiet:
    return Quiet(attempt=count.attempt, step=count.step, seconds=round(count.seconds, 1))


def _begun(
    snapshot: JobSnapshot, part: Sequence[Slot], progress: Progress | None, limit: float, clock: Clock
) -> list[Action]:
    status, count = snapshot.job.status, snapshot.quiet
    assert count is not None
    text = f"no step for {length(count.seconds)}" + (f" after step {count.step}" if count.step is not None else "")
    slot, suspicion = _suspect(snapshot, part)
    at = progress.time if progress is not None else None
    stall = Stall(
        attempt=status.attempt,
        since=at or builder.at(clock.now - count.seconds),
        step=count.step,
        slot=slot,
        limit_seconds=round(limit, 1),
        suspicion=builder.shortened(suspicion),
        message=builder.shortened("; ".join(filter(None, (text, suspicion)))),
    )
    return [
        WriteStatus(builder.fitted(replace(status, stall=stall, quiet=_length(count))), "Stalled"),
        RecordEvent("Stalled", stall.message, warning=True),
    ]


def _restart(snapshot: JobSnapshot, slots: Sequence[Slot], now: float) -> list[Action]:
    """End the attempt. If it stalls at the same step again, the fault is charged to the program."""
    job, stall = snapshot.job, snapshot.job.status.stall
    assert stall is not None
    again = any(fault.rule in STALLED and fault.step == stall.step for fault in job.status.faults[-1:])
    slot = stall.slot if stall.slot < len(slots) else 0
    evidence = Evidence(
        kind="stall",
        slot=slot,
        seen_at=now,
        node=slots[slot].node,
        reason="Again" if again else "Stalled",
        message=stall.message,
    )
    status, _ = incident.restart(snapshot, slots, [evidence], 0, now)
    message = f"{status.faults[-1].cause}: {status.faults[-1].message}"
    return [
        WriteStatus(status, "Restarting"),
        RecordEvent(incident.reason_of(job, status), message, warning=True),
    ]


def _ended(snapshot: JobSnapshot, progress: Progress | None) -> list[Action]:
    status = snapshot.job.status
    actions: list[Action] = [WriteStatus(replace(status, stall=None, quiet=None), "StallEnded")]
    if progress is not None and status.stall is not None and status.stall.attempt == status.attempt:
        actions.append(RecordEvent("StallEnded", f"the program reports again: step {progress.step}"))
    return actions


def _suspect(snapshot: JobSnapshot, part: Sequence[Slot]) -> tuple[int, str]:
    """Return the slot to name, and details: ranks that do not run, else a traceback."""
    idle = snapshot.job.status.idle_ranks
    if idle:
        return idle[0].slot, "; ".join(rank_text(each) for each in idle[:4])
    for slot in part:
        traces = slot.member.traces if slot.member is not None else ()
        for trace in traces[:1]:
            lines = "\n".join(trace.lines[-_TRACE_LINES:])[-_TRACE_CHARS:]
            return slot.number, f"rank {trace.rank} printed a traceback:\n{lines}"
    return part[0].number if part else 0, ""


def length(seconds: float) -> str:
    """Format a length of time: 45 s, 6 min, 2 h."""
    for unit_s, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:.0f} {unit}"
    return f"{seconds:.0f} s"
