"""Stops a job that the scheduler preempts: it saves its work, its pods are deleted, and it waits for nodes again.

The scheduler writes phase Preempting:
- for a gang of higher priority;
- for an earlier gang, if both lost nodes;
- for the gang for which the job's nodes are reserved, if the job was backfilled;
- for a gang that needs whole nodes, if the job fits on another partly used node;
- by the job's own policy (spec.noSpare).

A preemption is not charged to any budget; status.preemptions counts it. Once no pod is left, the scheduler deletes the
Placement. The pods of the next attempt then wait in the job's old place in the queue.
"""

from __future__ import annotations

from msgspec.structs import replace

from muster.api.training_job_status import TrainingJobStatus
from muster.api.words import counted
from muster.trainingjobs.attempts import backfilled, final_checkpoint, outcome
from muster.trainingjobs.attempts.stopping import delete_all, last_directive
from muster.trainingjobs.plan import Action, RecordEvent, WriteStatus
from muster.trainingjobs.pods.slots import Clock, Slot
from muster.trainingjobs.snapshot import JobSnapshot
from muster.trainingjobs.status import builder


def begin(snapshot: JobSnapshot, slots: list[Slot], clock: Clock) -> list[Action]:
    """Write that the job stops, if its Placement is Preempting and it has pods on nodes; else nothing."""
    placement = snapshot.placement
    if placement is None or placement.status.phase != "Preempting":
        return []
    if not any(pod.spec.node_name for pod in snapshot.pods):
        return []  # only pods of the next attempt are left; the scheduler is about to delete the Placement
    ended = outcome.finished(snapshot, slots, clock)
    if ended is not None:
        return ended
    job = snapshot.job
    why, generation = placement.status.message, job.metadata.generation
    backfill = placement.status.reason in ("Backfilled", "Moved")
    status = replace(
        backfilled.asked(snapshot, clock.now) if backfill else job.status,
        phase="Stopping",
        observed_generation=generation,
        message=f"{why}; its pods are stopping",
    )
    status = builder.with_condition(status, "Running", False, "Preempted", why, clock.now, generation)
    return [
        WriteStatus(builder.fitted(status), "Preempted"),
        RecordEvent("AskedToLeave" if backfill else "Preempted", why, warning=True),
    ]


def is_giving_way(status: TrainingJobStatus) -> bool:
    """Returns whether the job is stopping because of `begin`, and still has pods."""
    return status.phase == "Stopping" and builder.condition_reason(status, "Running")[0] == "Preempted"


def give_way(snapshot: JobSnapshot, slots: list[Slot], clock: Clock) -> list[Action]:
    """Let the job save a checkpoint, delete its pods, and begin the next attempt when they are gone."""
    job = snapshot.job
    if snapshot.pods:
        if final_checkpoint.stop_waits(snapshot, clock):
            return [last_directive(snapshot, slots, "run", checkpoint_now=True)]
        return [last_directive(snapshot, slots, "exit"), *delete_all(snapshot, "Preempted")]
    _, why = builder.condition_reason(job.status, "Running")
    generation = job.metadata.generation
    status = builder.next_attempt(job, backfilled.left(job.status))
    attempt = status.attempt
    status = replace(
        status,
        phase="Pending",
        ready_slots=0,
        preemptions=job.status.preemptions + 1,
        observed_generation=generation,
        message=f"{why}; waiting again as attempt {attempt}: creating {counted(job.spec.replicas, 'pod')}",
    )
    status = builder.with_condition(status, "Admitted", False, "Preempted", why, clock.now, generation)
    return [WriteStatus(builder.fitted(status), "Preempted")]
