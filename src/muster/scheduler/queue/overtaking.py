"""Backfilled gangs: who may start on reserved nodes although it is not first, and who gets these nodes back.

In pools with the policy `preemptible`, a gang may start on nodes that are reserved for a gang before it. It must be
restartable, or a TrainingJob that is expected to end in time. Its Placement records that (`spec.backfill`), or an
annotation of its pod. When the reserved gang fits without the backfilled gangs, it gets their nodes, and they are asked
to leave.
"""

from __future__ import annotations

from collections.abc import Iterator

from muster.scheduler.gangs.gang import Gang, Order
from muster.scheduler.plan import Settings
from muster.scheduler.queue.backfill import began_at
from muster.scheduler.queue.lending import is_lent, outranks
from muster.scheduler.snapshot import Snapshot


def backfill_order(gang: Gang, settings: Settings) -> tuple[bool, Order]:
    """Return a sort key of candidates for backfill. Gangs that were asked to leave too often come first."""
    return gang.times_asked < settings.backfill_asks_max, gang.order


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

    A gang that would lose its work rests for the whole permitted delay, because it is expected to end soon. The times
    are those of the settings when it started, as its Placement records them. A time of binding in the future comes from
    a clock that was set back since; it gives no rest.
    """
    began, promised = began_at(gang), gang.placement.spec.backfill if gang.placement is not None else None
    delay_s, min_run_s = settings.backfill_delay_s, settings.backfill_min_run_s
    if promised is not None:
        delay_s = delay_s if promised.delay_seconds is None else promised.delay_seconds
        min_run_s = min_run_s if promised.min_run_seconds is None else promised.min_run_seconds
    until = began + (min(min_run_s, delay_s) if gang.restartable else delay_s)
    return until if began <= now < until else 0.0
