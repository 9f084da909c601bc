"""Borrowed nodes: which a team's gangs reclaim from borrowers, whatever the priorities."""

from __future__ import annotations

from collections.abc import Iterator

from muster.scheduler.gangs.gang import Gang
from muster.scheduler.gangs.priority import Rank
from muster.scheduler.queue.backfill import nodes_of
from muster.scheduler.snapshot import Snapshot


def outranks(gang: Gang, other: Gang) -> bool:
    """Return whether `gang` may preempt `other` by its priority.

    Balloons preempt only balloons; borrowers preempt only balloons and borrowers. Otherwise a borrower of high
    priority would take nodes from their owners and have to return them at once.
    """
    return other.priority < gang.priority and gang.traits.preempts and other.traits.rank <= gang.traits.rank


def is_lent(snapshot: Snapshot, gang: Gang, other: Gang, node: str) -> bool:
    """Return whether the gang's team owns the node and `other` borrows it.

    A borrower's nodes without an owner, or of its own team, are not borrowed.
    """
    return may_reclaim(gang, other) and snapshot.owners.get(node) == gang.team


def may_reclaim(gang: Gang, other: Gang) -> bool:
    """Return whether the gang may reclaim what `other` borrows from its team; a borrower may not."""
    if not (gang.team and gang.traits.rank is Rank.OTHER and gang.traits.preempts):
        return False
    return other.borrows and other.team != gang.team


def lent_nodes(snapshot: Snapshot, gang: Gang, other: Gang) -> int:
    """Return the number of the team's nodes on which `other` has pods or slots, and that it would return."""
    return sum(is_lent(snapshot, gang, other, node) for node in nodes_of(other))


def debtors(snapshot: Snapshot, gang: Gang) -> Iterator[Gang]:
    """Yield borrowers of the team's nodes that must yield to the gang although their priority is not lower."""
    if not snapshot.borrowing or not gang.team:
        return
    for other in snapshot.borrowing.values():
        if not outranks(gang, other) and lent_nodes(snapshot, gang, other):
            yield other
