"""Asks ranks for a last checkpoint before Muster stops them, within a part of the grace period.

If a job keeps checkpoints, Muster asks the ranks that report through the SDK:
- when one of their pods is deleted or evicted;
- when the job is suspended or preempted;
- before the job's time limit.

Muster stops the ranks when a checkpoint is recorded, or when that part of the grace period has passed. Until then,
the supervisor of a pod that is being deleted keeps its ranks running.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from muster.kube.objects.pod import Pod
from muster.trainingjobs.pods.slots import Clock, Slot, in_contact
from muster.trainingjobs.snapshot import REJOIN_S, JobSnapshot

STOPPED_FOR: Final = ("Suspended", "Preempted")
"""Reasons of the condition Running of a job that is stopped on purpose."""
PART: Final = 0.5
"""Share of the grace period for the checkpoint; the rest is for the ranks to end."""


def asks(snapshot: JobSnapshot, slots: Sequence[Slot], clock: Clock) -> bool:
    """Returns whether to ask the ranks of the running attempt for a checkpoint now."""
    if not _keeps_checkpoints(snapshot):
        return False
    if any(slot.pod is not None and waits_for(snapshot, slot, slot.pod, clock) for slot in slots):
        return True
    spec, start = snapshot.job.spec, snapshot.job.status.start_time
    if spec.time_limit_seconds is None or start is None:
        return False
    since = start.timestamp() + spec.time_limit_seconds - spec.stop_grace_seconds
    return clock.passed(since) and not _saved(snapshot, since)


def waits_for(snapshot: JobSnapshot, slot: Slot, pod: Pod, clock: Clock) -> bool:
    """Returns whether a terminating pod may still wait for its attempt's last checkpoint."""
    member, status = slot.member, snapshot.job.status
    since = snapshot.seen.get((pod.uid, "terminating"))
    if status.phase != "Running" or since is None or not _keeps_checkpoints(snapshot):
        return False
    if member is None or (member.state, member.attempt) != ("running", status.attempt):
        return False
    if not in_contact(slot, clock.now):
        return False
    grace_s = PART * (pod.metadata.deletion_grace_period_seconds or 0)
    return not _saved(snapshot, since) and not clock.passed(since + grace_s)


def stop_waits(snapshot: JobSnapshot, clock: Clock) -> bool:
    """Returns whether a job that is suspended or preempted may first record a checkpoint."""
    job = snapshot.job
    stopped = next((each for each in job.status.conditions if each.type == "Running"), None)
    if stopped is None or stopped.reason not in STOPPED_FOR or stopped.last_transition_time is None:
        return False
    since = stopped.last_transition_time.timestamp()
    if job.spec.checkpoint is None and job.status.last_checkpoint is None:
        return False
    if _saved(snapshot, since) or clock.now < since:
        return False
    if not (_has_reported(snapshot) and _runs(snapshot)) and not _is_unheard(snapshot, since, clock):
        return False
    return not clock.passed(since + job.spec.stop_grace_seconds)


def _runs(snapshot: JobSnapshot) -> bool:
    attempt = snapshot.job.status.attempt
    return any(each.state == "running" and each.attempt == attempt for each in snapshot.members.values())


def _is_unheard(snapshot: JobSnapshot, since: float, clock: Clock) -> bool:
    """Returns whether this leader is newer than the stop, and waits for the first reports from the job's pods.

    It waits for all supervisors, and for a report of a rank if ranks run. It cannot know whether the program reports.
    """
    if snapshot.leading_since < since:
        return False
    heard = all(pod.uid in snapshot.members for pod in snapshot.pods if pod.status.phase == "Running")
    if heard and not _runs(snapshot):
        return False
    return not clock.passed(snapshot.leading_since + REJOIN_S)


def _keeps_checkpoints(snapshot: JobSnapshot) -> bool:
    job = snapshot.job
    return snapshot.progress is not None and (job.spec.checkpoint is not None or job.status.last_checkpoint is not None)


def _has_reported(snapshot: JobSnapshot) -> bool:
    """Returns whether the attempt has reported through the SDK, to this leader or, as the status says, to another."""
    status = snapshot.job.status
    known = (status.progress, status.last_checkpoint)
    return snapshot.progress is not None or any(each is not None and each.attempt == status.attempt for each in known)


def _saved(snapshot: JobSnapshot, since: float) -> bool:
    status = snapshot.job.status
    last = status.last_checkpoint
    return (
        last is not None and last.attempt == status.attempt and last.time is not None and last.time.timestamp() >= since
    )
