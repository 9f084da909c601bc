"""Backfilled gangs: who may start on reserved nodes although it is not first, and who gets these nodes back.

A gang of the policy `preemptible` may start on the nodes that are reserved for a gang before it, if it is restartable.
Its Placement records that (`spec.backfill`), or an annotation of its pod. When the reserved gang fits without the
backfilled gangs, it gets their nodes, and they are asked to leave.
"""

from __future__ import annotations

from collections.abc import Iterator

from muster.scheduler.gangs.gang import Gang, seconds
from muster.scheduler.plan import Settings
from muster.scheduler.queue.lending import is_lent, outranks
from muster.scheduler.snapshot import Snapshot


def may_be_backfilled(gang: Gang, settings: Settings) -> bool:
    """Return whether the gang may start on nodes that are reserved for a gang before it, until that gang can start.

    A gang that was asked to leave such nodes too often waits for its turn instead.
    """
    return gang.restartable and gang.times_asked < settings.backfill_asks_max


def has_overtaken(gang: Gang, other: Gang) -> bool:
    """Return whether `other` was backfilled, and `gang` is before it in the queue."""
    return other.backfilled and gang.order < other.order


def overtakers(snapshot: Snapshot, gang: Gang) -> Iterator[Gang]:
    """Yield the backfilled gangs that are after `gang` in the queue and that it may not preempt for another reason."""
    for other in snapshot.backfilled.values():
        if has_overtaken(gang, other) and not outranks(gang, other) and not _borrows_from(snapshot, gang, other):
            yield other


def _borrows_from(snapshot: Snapshot, gang: Gang, other: Gang) -> bool:
    return other.borrows and any(is_lent(snapshot, gang, other, node) for node, _ in other.takes())


def rests_until(gang: Gang, now: float, settings: Settings) -> float:
    """Return until when a backfilled gang is not asked to leave, so that it does some work; 0 if it may be asked now.

    A time of binding in the future comes from a clock that was set back since; it gives no rest.
    """
    began = began_at(gang)
    until = began + settings.backfill_min_run_s
    return until if began <= now < until else 0.0


def began_at(gang: Gang) -> float:
    """Return when the gang was bound, in seconds since the epoch; 0 if unknown."""
    if gang.placement is not None:
        return seconds(gang.placement.status.bound_time)
    return max((member.bound_since for member in gang.current.values()), default=0.0)
