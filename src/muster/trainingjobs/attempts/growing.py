"""Returns missing slots to a job that runs without some of its nodes (noSpare: Shrink).

The job does not wait for these slots. If the job has checkpoints, the controller keeps a pod for each missing slot,
and the scheduler places these pods on nodes that no other gang waits for. When such pods are ready, Muster requests
a checkpoint from the ranks, and the next attempt continues from it with more nodes. No budget is charged. A job
without a checkpoint would lose all its work in such a restart. So the controller deletes its pods for missing
slots, and creates pods for all slots at its next restart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from muster.api.words import counted
from muster.trainingjobs.attempts.stopping import lost
from muster.trainingjobs.faults.rules import Evidence, row_of
from muster.trainingjobs.plan import Action, CreatePod, DeletePod, Reason, RecordEvent, WriteStatus
from muster.trainingjobs.pods.slots import Clock, Slot, joined
from muster.trainingjobs.snapshot import JobSnapshot
from muster.trainingjobs.status import builder


def tend(snapshot: JobSnapshot, outside: Sequence[Slot], broken: Mapping[int, Evidence], clock: Clock) -> list[Action]:
    """Keep one pod for each missing slot if the job has checkpoints; otherwise delete these pods."""
    status = snapshot.job.status
    if status.last_checkpoint is None:
        return [_delete(snapshot, slot) for slot in outside if _stays(slot)]
    bad = [broken[slot.number] for slot in outside if slot.number in broken and row_of(broken[slot.number]).exclude]
    more = builder.fitted(builder.excluding_more(status, (each.node for each in bad if each.node)))
    if more.excluded_nodes != status.excluded_nodes:
        return [WriteStatus(more, "SlotBroken")]
    deletes: list[Action] = [_delete(snapshot, slot) for slot in outside if _stays(slot) and slot.number in broken]
    refusal = snapshot.refusal
    if refusal is not None and not clock.passed(refusal.retry_at):
        return deletes
    # a pod of an earlier attempt may remain on a lost node, where no kubelet can confirm that it ended
    empty = [slot for slot in outside if slot.pod is None or (slot.attempt < status.attempt and not _stays(slot))]
    return deletes + [CreatePod(slot.number, status.attempt, status.excluded_nodes, "SlotEmpty") for slot in empty]


def ready(snapshot: JobSnapshot, outside: Sequence[Slot], broken: Mapping[int, Evidence], now: float) -> list[Slot]:
    """Return the missing slots that are ready; none while other missing slots have a node and are still starting."""
    sound = [slot for slot in outside if slot.node and slot.number not in broken]
    able = [slot for slot in sound if joined(slot, snapshot, now)]
    return able if len(able) == len(sound) else []


def grow(snapshot: JobSnapshot, more: Sequence[Slot], now: float) -> list[Action]:
    """End the attempt and begin one with these slots, if a checkpoint was recorded after they became ready."""
    job, old = snapshot.job, snapshot.job.status
    last, since = old.last_checkpoint, max((slot.member.state_at for slot in more if slot.member), default=now)
    if not more or last is None or last.attempt != old.attempt or last.time is None or last.time.timestamp() < since:
        return []
    are = "nodes are" if len(more) != 1 else "node is"
    why = f"{len(more)} more {are} ready: attempt {old.attempt} ends at its checkpoint of step {last.step}"
    status = replace(
        builder.next_attempt(job, old),
        phase="Restarting",
        progress=snapshot.progress or old.progress,
        message=f"{why}; restarting as attempt {old.attempt + 1} on up to {counted(job.spec.replicas, 'node')}",
    )
    status = builder.with_condition(status, "Running", False, "Growing", why, now, job.metadata.generation)
    return [WriteStatus(builder.fitted(status), "Growing"), RecordEvent("Growing", why)]


def _stays(slot: Slot) -> bool:
    return slot.pod is not None and not slot.pod.terminating


def _delete(snapshot: JobSnapshot, slot: Slot) -> DeletePod:
    assert slot.pod is not None
    reason: Reason = "Shrunk" if snapshot.job.status.last_checkpoint is None else "SlotBroken"
    return DeletePod(slot.pod.name, slot.pod.uid, reason, force=lost(snapshot, slot.node))
