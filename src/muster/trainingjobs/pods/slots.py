"""The slots of a gang: the pod of each slot, and superseded pods."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from muster.api.names import ANNOTATION_ATTEMPT, LABEL_SLOT
from muster.api.training_job import TrainingJob
from muster.kube.objects.pod import Pod
from muster.trainingjobs.snapshot import CUT_TIMEOUT_S, JobSnapshot, Member


class Clock:
    """The time of one decision, and the earliest moment at which time alone may change the decision."""

    def __init__(self, now: float) -> None:
        """Start at `now`, seconds since the epoch."""
        self.now = now
        self.wake_at: float | None = None

    def passed(self, moment: float) -> bool:
        """Returns whether the moment has passed. If not, the job is reconciled again at that moment."""
        if self.now >= moment:
            return True
        if self.wake_at is None or moment < self.wake_at:
            self.wake_at = moment
        return False


class Slot(msgspec.Struct, frozen=True):
    """A slot, its pod (that of the newest attempt) and its supervisor; None if it has none."""

    number: int
    pod: Pod | None = None
    attempt: int = 0
    member: Member | None = None

    @property
    def node(self) -> str:
        """The node of its pod; "" while it has none."""
        return self.pod.spec.node_name if self.pod is not None else ""


def attempt_of(pod: Pod) -> int:
    """The attempt at which the pod was made; 0 where the annotation is missing."""
    text = pod.metadata.annotations.get(ANNOTATION_ATTEMPT, "")
    return int(text) if text.isdecimal() else 0


def slot_of(pod: Pod) -> int:
    """The pod's slot; -1 where the label is missing."""
    text = pod.metadata.labels.get(LABEL_SLOT, "")
    return int(text) if text.isdecimal() else -1


def slots_of(snapshot: JobSnapshot) -> tuple[list[Slot], list[Pod]]:
    """Return every slot in order, and the pods without a slot: those of older attempts or beyond the size."""
    size = snapshot.job.spec.replicas
    holders: list[tuple[int, Pod] | None] = [None] * size
    superseded = []
    for pod in snapshot.pods:
        number, attempt = slot_of(pod), attempt_of(pod)
        if not 0 <= number < size:
            superseded.append(pod)
            continue
        held = holders[number]
        if held is None:
            holders[number] = (attempt, pod)
        elif held[0] < attempt:
            superseded.append(held[1])
            holders[number] = (attempt, pod)
        else:
            superseded.append(pod)
    slots = []
    for number, held in enumerate(holders):
        if held is None:
            slots.append(Slot(number))
        else:
            slots.append(Slot(number, held[1], held[0], snapshot.members.get(held[1].uid)))
    return slots, superseded


def left_out(snapshot: JobSnapshot, slots: Sequence[Slot]) -> frozenset[int]:
    """Returns the slots that the current attempt runs without (noSpare: Shrink).

    A running attempt has them in the status. An attempt that has not begun runs without the slots whose pods of this
    attempt the scheduler gave up. If the given-up pod is of an earlier attempt, it is recreated and waits for a node
    again. If the Placement is lost, the status still holds what it said.
    """
    job, placement = snapshot.job, snapshot.placement
    if job.status.phase == "Running":
        return frozenset(job.status.left_out)
    if placement is None:
        attempts = dict.fromkeys(_recorded(job), job.status.attempt)
    elif placement.status.phase in ("Preempting", "Released"):
        return frozenset()
    else:
        attempts = {each.slot: each.attempt for each in placement.spec.given_up}
    return frozenset(
        slot.number
        for slot in slots
        if slot.pod is not None
        and not slot.node
        and job.status.attempt <= slot.attempt <= attempts.get(slot.number, -1)
    )


def _recorded(job: TrainingJob) -> tuple[int, ...]:
    """The slots that the status leaves out, if the spec allows that: a user may have edited the status."""
    fewest = (job.spec.min_replicas or job.spec.replicas) if job.spec.no_spare == "Shrink" else job.spec.replicas
    recorded = job.status.left_out
    return recorded if job.spec.replicas - len(recorded) >= fewest else ()


def taking_part(snapshot: JobSnapshot, slots: Sequence[Slot]) -> list[Slot]:
    """The slots of the current attempt."""
    outside = left_out(snapshot, slots)
    return [slot for slot in slots if slot.number not in outside] if outside else list(slots)


def in_contact(slot: Slot, now: float) -> bool:
    """Returns whether the slot's supervisor polls now, or polled a moment ago."""
    member = slot.member
    return member is not None and (member.silent_since is None or now - member.silent_since < CUT_TIMEOUT_S)


def joined(slot: Slot, snapshot: JobSnapshot, now: float) -> bool:
    """Returns whether ranks can start: the supervisor polls, knows its checkpoints, and runs no older attempt."""
    member, pod = slot.member, slot.pod
    return (
        pod is not None
        and member is not None
        and member.state == "idle"
        and not member.looking
        and member.attempt >= snapshot.job.status.attempt
        and bool(member.address)
        and not pod.terminating
        and in_contact(slot, now)
    )


def pod_uids(slots: Sequence[Slot]) -> tuple[str, ...]:
    """The UID of each slot's pod; "" for an empty slot."""
    return tuple(slot.pod.uid if slot.pod is not None else "" for slot in slots)
