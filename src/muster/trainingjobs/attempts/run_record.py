"""The record of a running attempt, written once when it begins; later decisions read its facts only from here.

While an attempt runs, nodes are deleted and relabelled, specs are edited, and new checkpoints arrive. So the launcher,
the rank of each slot and the master's address are never derived again. If the record is missing (a job of an earlier
version, or a manual edit of the status), the supervisors' reports are used: each knows its own node rank.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from muster.api.names import LABEL_RACK, LABEL_ZONE
from muster.api.run_record import RANK_RANGES_MAX, CopyPartners, HandedCheckpoint, RunRecord, SlotRange
from muster.api.training_job_status import CheckpointStatus, TrainingJobStatus
from muster.kube.objects.node import Node
from muster.trainingjobs.attempts import checkpoints
from muster.trainingjobs.attempts.cache_address import cache_address
from muster.trainingjobs.attempts.copy_partners import Domain, choose
from muster.trainingjobs.pods.slots import Slot
from muster.trainingjobs.snapshot import JobSnapshot, Member

_PORTS: Final = range(20_000, 32_000)
"""Below Linux's ports for outgoing connections (net.ipv4.ip_local_port_range), and above ports of usual services."""
_DIGEST_CHARS: Final = 16


def begin(snapshot: JobSnapshot, part: Sequence[Slot], last: CheckpointStatus | None) -> RunRecord:
    """Return the record of an attempt that begins now. Every supervisor must have joined."""
    from_here = None
    if last is not None:
        seen = checkpoints.seen_everywhere(last.path, part, snapshot.job.status.attempt)
        from_here = HandedCheckpoint(path=last.path, step=last.step, seen_everywhere=seen, manifest=last.manifest)
    return _record(snapshot, rank_order(part, snapshot.nodes), from_here)


def recorded(status: TrainingJobStatus) -> RunRecord | None:
    """The record of the current attempt; None if the status has none."""
    return status.run if status.run is not None and status.run.attempt == status.attempt else None


def remembered(snapshot: JobSnapshot) -> JobSnapshot:
    """Return the snapshot with the record that this process wrote, if the status has lost or changed it.

    The next write restores it. So an API server that drops the field, because its CustomResourceDefinition is older,
    does not cause one write after another.
    """
    job, record = snapshot.job, snapshot.run
    if record is None or record.attempt != job.status.attempt or record == job.status.run:
        return snapshot
    return replace(snapshot, job=replace(job, status=replace(job.status, run=record)))


def restored(snapshot: JobSnapshot, part: Sequence[Slot]) -> RunRecord | None:
    """Restore the record of a running attempt from reports; None if that is not possible.

    It is possible if every supervisor has reported its node rank, or if no supervisor has begun.
    """
    attempt = snapshot.job.status.attempt
    members = _all_heard(part, attempt)
    if not members:
        return None
    if all(member.state == "idle" for member in members):
        return begin(snapshot, part, snapshot.job.status.last_checkpoint)
    ranks = {node_rank(slot, attempt): slot for slot in part}
    if sorted(ranks) != list(range(len(part))):
        return None
    return _record(snapshot, [ranks[number] for number in range(len(part))], None)  # all ranks run already


def is_lost(status: TrainingJobStatus, part: Sequence[Slot]) -> bool:
    """Returns whether an attempt without a usable record cannot continue, although every supervisor has reported.

    If no supervisor is idle and none reports its node rank, all of them run, as those of earlier versions do.
    """
    members = _all_heard(part, status.attempt)
    if not part:
        return True
    speaking = any(member.state == "idle" or member.node_rank >= 0 for member in members)
    return bool(members) and (recorded(status) is not None or speaking)


def in_rank_order(status: TrainingJobStatus, part: Sequence[Slot]) -> list[Slot] | None:
    """Return the slots by recorded node rank; None without a record, or if it is about other slots."""
    record = recorded(status)
    if record is None or record.nodes != len(part):
        return None
    by_number = {slot.number: slot for slot in part}
    numbers = record.slots_by_rank() or sorted(by_number)
    if len(numbers) != len(part) or set(numbers) != set(by_number):
        return None
    return [by_number[number] for number in numbers]


def launcher(status: TrainingJobStatus, part: Sequence[Slot]) -> Slot | None:
    """Return the slot where mpiexec runs, from the record or from supervisors' reports; None if it is not known."""
    record = recorded(status)
    if record is not None and record.launcher_slot is not None:
        return next((slot for slot in part if slot.number == record.launcher_slot), None)
    return next((slot for slot in part if node_rank(slot, status.attempt) == 0), None)


def has_its_pods(status: TrainingJobStatus, part: Sequence[Slot]) -> bool:
    """Returns whether the slots still have the pods with which the attempt began; true without a record."""
    record, ordered = recorded(status), in_rank_order(status, part)
    return record is None or ordered is None or not record.pods or record.pods == _digest(ordered)


def node_rank(slot: Slot, attempt: int) -> int:
    """The node rank that the slot's supervisor reported for this attempt; -1 if it reported none."""
    member = slot.member
    if member is None or member.attempt != attempt or member.state == "idle":
        return -1
    return member.node_rank


def rank_order(slots: Sequence[Slot], nodes: Mapping[str, Node]) -> list[Slot]:
    """Order slots so that neighbours in the network are neighbours in rank. Otherwise the slot number decides.

    If the order has too many ranges for a record, it is by zone alone; if that has too many, by slot number.
    """

    def label(slot: Slot, name: str) -> str:
        node = nodes.get(slot.node)
        return node.metadata.labels.get(name, "") if node is not None else ""

    orders: tuple[Callable[[Slot], tuple[str, str, int]], ...] = (
        lambda slot: (label(slot, LABEL_ZONE), label(slot, LABEL_RACK), slot.number),
        lambda slot: (label(slot, LABEL_ZONE), "", slot.number),
    )
    for order in orders:
        ordered = sorted(slots, key=order)
        if len(ranges([slot.number for slot in ordered])) <= RANK_RANGES_MAX:
            return ordered
    return sorted(slots, key=lambda slot: slot.number)


def ranges(numbers: Iterable[int]) -> tuple[SlotRange, ...]:
    """Convert slot numbers to ranges; empty for ascending numbers."""
    listed = list(numbers)
    if listed == sorted(listed):
        return ()
    found: list[SlotRange] = []
    for number in listed:
        last = found[-1] if found else None
        if last is not None and number == last.first + last.count:
            found[-1] = SlotRange(first=last.first, count=last.count + 1)
        else:
            found.append(SlotRange(first=number))
    return tuple(found)


def master_port(uid: str, attempt: int) -> int:
    """Return MASTER_PORT for an attempt. Consecutive attempts have different ports."""
    return _PORTS[zlib.crc32(f"{uid}/{attempt}".encode()) % len(_PORTS)]


def _record(snapshot: JobSnapshot, ordered: Sequence[Slot], checkpoint: HandedCheckpoint | None) -> RunRecord:
    spec, status = snapshot.job.spec, snapshot.job.status
    first = ordered[0]
    assert first.member is not None, "every supervisor has joined"
    return RunRecord(
        attempt=status.attempt,
        launcher=spec.launcher,
        launcher_slot=first.number,
        nodes=len(ordered),
        ranks_per_node=snapshot.job.ranks,
        rank_order=ranges(slot.number for slot in ordered),
        pods=_digest(ordered),
        master_address=first.member.address,
        master_port=master_port(snapshot.job.uid, status.attempt),
        checkpoint=checkpoint,
        partners=_partners(snapshot, ordered),
    )


def _partners(snapshot: JobSnapshot, ordered: Sequence[Slot]) -> CopyPartners | None:
    if sum(bool(cache_address(slot, snapshot.nodes)) for slot in ordered) < 2:
        return None
    return choose(domains(snapshot, ordered))


def domains(snapshot: JobSnapshot, part: Sequence[Slot]) -> list[Domain]:
    """Return the failure domain of each slot's node, from the node's labels at this time."""
    labels = [node.metadata.labels if (node := snapshot.nodes.get(slot.node)) is not None else {} for slot in part]
    return [Domain(each.get(LABEL_ZONE, ""), each.get(LABEL_RACK, "")) for each in labels]


def _all_heard(part: Sequence[Slot], attempt: int) -> list[Member]:
    """Return the supervisors of all slots if each has reported for this attempt; else none."""
    members = [slot.member for slot in part if slot.member is not None]
    heard = [member for member in members if member.address and member.attempt == attempt]
    return heard if len(heard) == len(part) else []


def _digest(ordered: Sequence[Slot]) -> str:
    uids = ",".join(slot.pod.uid if slot.pod is not None else "" for slot in ordered)
    return hashlib.sha256(uids.encode()).hexdigest()[:_DIGEST_CHARS]
