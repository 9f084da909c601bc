"""Keeps the records of backfilled gangs correct: for which gang are the nodes reserved on which they run?

The gang in a record may be deleted, start elsewhere, or need other nodes. Then the record names the gang that
reserves the nodes now. If no gang before the backfilled one reserves them, the record is removed: the gang keeps its
nodes, as if it had started on them in its turn. Records of single pods stay, because they are a part of the bind.
"""

from __future__ import annotations

from msgspec.structs import replace

from muster.api.placement import Backfill
from muster.scheduler.draft import Draft
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.gangs.placements import is_leaving
from muster.scheduler.plan import WritePlacement
from muster.scheduler.queue.backfill import nodes_of

_AT_ONCE = 16
"""Maximum number of records that one plan writes. They are less urgent than all other writes."""


def update_records(draft: Draft) -> None:
    """Write the records that are wrong now. Gangs that are about to leave keep theirs."""
    written = 0
    for gang in draft.snapshot.backfilled.values():
        placement = gang.placement
        if placement is None or gang.writing or is_leaving(gang) or gang.key in draft.leaving | draft.written:
            continue
        record = placement.spec.backfill
        if record is None or _holds(draft, gang, record):
            continue
        first = draft.kept.first_on(nodes_of(gang))
        if first is not None and first.order < gang.order:
            record = replace(record, gang=first.full_name, gang_uid=first.uid)
        else:
            record = None
        if record == placement.spec.backfill:
            continue  # a placed gang that waits for a lost node reserves them now
        fresh = replace(placement, spec=replace(placement.spec, backfill=record))
        draft.actions.append(WritePlacement(gang.key, fresh))
        draft.written.add(gang.key)
        written += 1
        if written == _AT_ONCE:
            return


def _holds(draft: Draft, gang: Gang, record: Backfill) -> bool:
    """Return whether the gang in the record waits, and may get the nodes of this one."""
    other = draft.snapshot.find(*record.gang.split("/", 1))
    if other is None or other.uid != record.gang_uid or other.ended:
        return False
    if other.placement is not None:
        return other.placement.spec.preempting
    if not other.current:
        return other.job is not None  # its pods are about to be created
    if any(draft.kept.first_on([node]) is other for node in nodes_of(gang)):
        return True
    return bool(other.pending) and not draft.kept.reserves(other)  # it is behind another gang, or not complete
