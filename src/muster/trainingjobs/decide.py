"""Decides the next actions for a training job: a pure function.

Life of a job:

    Pending --all bound--> Starting --all joined--> Running --launcher ended with 0--> Succeeded
       ^                       |                      |  ^
       |                       +------ a fault -------+  | all joined
    Suspended <--pods gone-- Stopping                 v  |
                                                   Restarting --budget used up--> Failed

A job that is preempted goes through Stopping too, and then to Pending.

Durable state is the status, the pods and the Placement. Supervisors report again to a new controller. Each step is
written before it is carried out, and later steps are derived from the written state. The controller directs `run` only
if the status says that the attempt is Running. A pod's name contains the attempt for which it was created. If a
controller dies between two actions, the next one continues from the written state.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from muster.api.fixed_spec import effective, fixed
from muster.api.training_job import TrainingJob
from muster.api.validate import validate
from muster.api.words import counted
from muster.trainingjobs.attempts import backfilled, checkpoints, final_checkpoint, give_way, recovery, run_record
from muster.trainingjobs.attempts.attempt import Attempt
from muster.trainingjobs.attempts.stopping import delete_all, last_directive, lost
from muster.trainingjobs.plan import (
    Action,
    DeleteJob,
    DeletePod,
    Direct,
    Directive,
    Plan,
    RecordEvent,
    WriteStatus,
)
from muster.trainingjobs.pods.node_use import node_use
from muster.trainingjobs.pods.slots import Clock, Slot, pod_uids, slots_of
from muster.trainingjobs.snapshot import JobSnapshot, Wait
from muster.trainingjobs.status import builder, forecasts, spec_edits, stalls

_STOP_SLACK_S: Final = 30.0
"""Added to twice the grace before pods of an ended job that will not end are deleted."""
_SOURCE_LOOK_S: Final = 5.0
"""Interval at which a job that waits for another job is reconciled, because changes of the other job do not wake it."""
ENDED: Final = ("Succeeded", "Failed")


def decide(snapshot: JobSnapshot, now: float) -> Plan:
    """Return the plan for one job. The module's docstring describes the life of a job."""
    if snapshot.job.metadata.deletion_timestamp is not None:
        return Plan()  # the garbage collector deletes its pods
    snapshot = run_record.remembered(snapshot)
    corrected = recovery.end(snapshot, now)
    if corrected:
        return Plan(actions=tuple(corrected))
    asked, runs_by = snapshot.job.spec, effective(snapshot.job)
    if _is_active(snapshot.job):
        edits = spec_edits.said(snapshot, runs_by, now)
        if edits:
            return Plan(actions=tuple(edits))
        snapshot = spec_edits.held(replace(snapshot, job=recovery.readable(runs_by.job)), runs_by, now)
    job, clock = snapshot.job, Clock(now)
    slots, superseded = slots_of(snapshot)
    actions: list[Action] = []
    if job.status.phase in ENDED:
        actions += _ended(snapshot, slots, clock)
    elif job.spec.suspend:
        actions += _suspend(snapshot, slots, clock)
    elif give_way.is_giving_way(job.status):
        actions += give_way.give_way(snapshot, slots, clock)
    elif job.status.phase in ("Suspended", "Stopping"):
        actions += _resume(replace(snapshot, job=replace(job, spec=asked)), slots, clock)
    elif job.status.attempt <= 0:
        actions += _begin(snapshot, clock)
    else:
        actions += (
            recovery.begin(snapshot, now)
            or give_way.begin(snapshot, slots, clock)
            or Attempt(snapshot, slots, clock).actions()
        )
        if not _writes(actions):
            actions += backfilled.follow(snapshot)
        if not _writes(actions):
            actions += forecasts.follow(snapshot, now)
        if job.status.phase == "Running" and not _writes(actions):
            actions += stalls.tend(snapshot, slots, clock)
    if not job.spec.suspend:
        actions += [
            DeletePod(pod.name, pod.uid, "Superseded", force=lost(snapshot, pod.spec.node_name))
            for pod in superseded
            if not pod.terminating
        ]
    actions += _abandoned(snapshot, clock)
    actions = [forecasts.without_old(action) for action in actions]
    return Plan(actions=tuple(actions), wake_at=clock.wake_at)


def _writes(actions: list[Action]) -> bool:
    return any(isinstance(each, WriteStatus) for each in actions)


def _is_active(job: TrainingJob) -> bool:
    """Returns whether the spec is fixed: the job has begun, and is neither suspended nor ended."""
    if job.status.attempt <= 0 or job.spec.suspend or job.status.phase in (*ENDED, "Suspended"):
        return False
    return job.status.phase != "Stopping" or give_way.is_giving_way(job.status)


def _begin(snapshot: JobSnapshot, clock: Clock) -> list[Action]:
    """Write the number of the first attempt before any pod is created.

    If the job cannot run, report why, and wait for an edit of its spec.
    """
    job, now = snapshot.job, clock.now
    generation = job.metadata.generation
    problems = validate(job)
    if problems:
        message = "; ".join(str(problem) for problem in problems)
        if builder.condition_reason(job.status, "Admitted") == ("InvalidSpec", builder.shortened(message)):
            return []
        status = replace(job.status, observed_generation=generation, message=f"cannot run: {message}")
        status = builder.with_condition(status, "Admitted", False, "InvalidSpec", message, now, generation)
        return [
            WriteStatus(builder.fitted(status), "InvalidSpec"),
            RecordEvent("InvalidSpec", message, warning=True),
        ]
    waiting = _awaits_source(snapshot, clock)
    if waiting is not None:
        return waiting

    use = node_use(job, snapshot.gpu_counts)
    if isinstance(use, Wait):
        return _undecided(job, use, now)
    newest = recovery.newest_attempt(snapshot)
    status = replace(
        checkpoints.with_source(snapshot, builder.next_attempt(job, replace(job.status, attempt=0))),
        phase="Pending",
        attempt=newest + 1,
        fixed_spec=fixed(job.spec),
        node_use=use,
        observed_generation=generation,
        message=f"creating {counted(job.spec.replicas, 'pod')}",
    )
    lost = [recovery.wiped(newest)] if newest else []
    return [WriteStatus(status, "Created"), *lost]


def _awaits_source(snapshot: JobSnapshot, clock: Clock) -> list[Action] | None:
    """Make a job wait until the checkpoint from which it starts exists; None if it does not have to wait."""
    job, message = snapshot.job, checkpoints.awaited(snapshot)
    if not message:
        return None
    clock.passed(clock.now + _SOURCE_LOOK_S)
    if builder.condition_reason(job.status, "Admitted") == ("CheckpointAwaited", builder.shortened(message)):
        return []
    status = replace(job.status, observed_generation=job.metadata.generation, message=message)
    generation = job.metadata.generation
    status = builder.with_condition(status, "Admitted", False, "CheckpointAwaited", message, clock.now, generation)
    return [WriteStatus(builder.fitted(status), "CheckpointAwaited"), RecordEvent("CheckpointAwaited", message)]


def _undecided(job: TrainingJob, wait: Wait, now: float) -> list[Action]:
    """Write once why the number of GPUs per node is not known."""
    if builder.condition_reason(job.status, "Admitted") == (wait.reason, builder.shortened(wait.message)):
        return []
    generation = job.metadata.generation
    status = replace(job.status, observed_generation=generation, message=f"waiting: {wait.text}")
    status = builder.with_condition(status, "Admitted", False, wait.reason, wait.message, now, generation)
    return [WriteStatus(builder.fitted(status), "Waiting"), RecordEvent("Waiting", wait.message, warning=True)]


def _suspend(snapshot: JobSnapshot, slots: list[Slot], clock: Clock) -> list[Action]:
    """Suspend the job: report that it stops, let it save a checkpoint, delete its pods, and report the end."""
    job, now = snapshot.job, clock.now
    status, generation = job.status, job.metadata.generation
    if status.phase not in ("Stopping", "Suspended"):
        status = replace(status, phase="Stopping", observed_generation=generation, message="its pods are stopping")
        status = builder.with_condition(status, "Running", False, "Suspended", "spec.suspend is true", now, generation)
        return [WriteStatus(builder.fitted(status), "Suspended")]
    if snapshot.pods:
        if status.phase == "Stopping" and final_checkpoint.stop_waits(snapshot, clock):
            return [last_directive(snapshot, slots, "run", checkpoint_now=True)]
        return [last_directive(snapshot, slots, "exit"), *delete_all(snapshot, "Suspended")]
    if status.phase == "Suspended" and status.observed_generation == generation:
        return []
    status = replace(
        backfilled.left(status),
        phase="Suspended",
        ready_slots=0,
        observed_generation=generation,
        message="it holds no nodes",
    )
    status = builder.with_condition(status, "Suspended", True, "Suspended", "spec.suspend is true", now, generation)
    status = builder.with_condition(status, "Admitted", False, "Suspended", "spec.suspend is true", now, generation)
    return [WriteStatus(builder.fitted(status), "Suspended"), RecordEvent("Suspended", "its nodes are free")]


def _resume(snapshot: JobSnapshot, slots: list[Slot], clock: Clock) -> list[Action]:
    """Start a new attempt when the last pods of the old one are gone. A resume is not charged to any budget."""
    job, now = snapshot.job, clock.now
    if snapshot.pods:
        return [last_directive(snapshot, slots, "exit"), *delete_all(snapshot, "Suspended")]
    waiting = _awaits_source(snapshot, clock)
    if waiting is not None:
        return waiting

    use = node_use(job, snapshot.gpu_counts)
    if isinstance(use, Wait):
        return _undecided(job, use, now)
    generation = job.metadata.generation
    attempt = recovery.newest_attempt(snapshot) + 1
    status = replace(
        checkpoints.with_source(snapshot, builder.next_attempt(job, backfilled.left(job.status))),
        phase="Pending",
        attempt=attempt,
        fixed_spec=fixed(job.spec),
        node_use=use,
        ready_slots=0,
        observed_generation=generation,
        message=f"resumed as attempt {attempt}: creating {counted(job.spec.replicas, 'pod')}",
    )
    status = replace(status, backoff=None)  # a user resumed the job, so the backoff starts from zero
    status = builder.with_condition(status, "Suspended", False, "Resumed", "spec.suspend is false", now, generation)
    status = builder.with_condition(status, "Admitted", False, "Resumed", "spec.suspend is false", now, generation)
    return [WriteStatus(builder.fitted(status), "Resumed"), RecordEvent("Resumed", status.message)]


def _ended(snapshot: JobSnapshot, slots: list[Slot], clock: Clock) -> list[Action]:
    """Direct supervisors to exit with the job's outcome.

    Pods that do not exit in time, and pods without a node, are deleted. The others stay for their logs.
    """
    job = snapshot.job
    status, spec = job.status, job.spec
    ended_at = status.completion_time.timestamp() if status.completion_time is not None else clock.now
    actions: list[Action] = [
        Direct(
            Directive(
                attempt=status.attempt,
                desired="exit",
                exit_code=0 if status.phase == "Succeeded" else 1,
                grace_s=spec.stop_grace_seconds,
                slots=pod_uids(slots),
            )
        )
    ]
    left = [slot.pod for slot in slots if slot.pod is not None and not slot.pod.finished and not slot.pod.terminating]
    if left and clock.passed(ended_at + 2 * spec.stop_grace_seconds + _STOP_SLACK_S):
        actions += [DeletePod(pod.name, pod.uid, "Ended", lost(snapshot, pod.spec.node_name)) for pod in left]
    else:
        actions += [DeletePod(pod.name, pod.uid, "Ended") for pod in left if not pod.spec.node_name]
    if spec.ttl_seconds_after_finished is not None and clock.passed(ended_at + spec.ttl_seconds_after_finished):
        actions.append(DeleteJob("Expired"))
    return actions


def _abandoned(snapshot: JobSnapshot, clock: Clock) -> list[Action]:
    """Force the deletion of terminating pods on lost nodes.

    Their kubelets cannot confirm the end, and the pods count against quota until then.
    """
    return [
        DeletePod(pod.name, pod.uid, "Superseded", force=True)
        for pod in snapshot.pods
        if pod.terminating
        and pod.metadata.deletion_grace_period_seconds != 0
        and lost(snapshot, pod.spec.node_name)
        and clock.passed(
            snapshot.seen.get((pod.uid, "terminating"), clock.now) + (pod.metadata.deletion_grace_period_seconds or 0)
        )
    ]
