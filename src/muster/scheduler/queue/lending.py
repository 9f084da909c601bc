"""Nodes that a team lent: its own gangs get them back, whatever the priorities of those that borrow them."""

from __future__ import annotations

from collections.abc import Iterator

from muster.scheduler.gangs.gang import Gang
from muster.scheduler.gangs.priority import Rank
from muster.scheduler.queue.backfill import nodes_of
from muster.scheduler.snapshot import Snapshot


def outranks(gang: Gang, other: Gang) -> bool:
    """Whether `other` leaves for the gang by its priority.

    Nobody leaves for a balloon but balloons, and for a borrower but those and borrowers: by a higher priority it would
    else take from owners what has to be given back to them at once.
    """
    return other.priority < gang.priority and gang.traits.preempts and other.traits.rank <= gang.traits.rank


def is_lent(snapshot: Snapshot, gang: Gang, other: Gang, node: str) -> bool:
    """Whether the node is of the gang's team, and `other` borrows it.

    What a borrower has of nobody's nodes, or of its own team's, is not lent.
    """
    return may_reclaim(gang, other) and snapshot.owners.get(node) == gang.team


def may_reclaim(gang: Gang, other: Gang) -> bool:
    """Whether the gang may have back what `other` borrows of its team, if anything; a borrower owns nothing."""
    if not (gang.team and gang.traits.rank is Rank.OTHER and gang.traits.preempts):
        return False
    return other.borrows and other.team != gang.team


def lent_nodes(snapshot: Snapshot, gang: Gang, other: Gang) -> int:
    """Count the nodes of the gang's team on which `other` is, or keeps slots, and that it would give back."""
    return sum(is_lent(snapshot, gang, other, node) for node in nodes_of(other))


def debtors(snapshot: Snapshot, gang: Gang) -> Iterator[Gang]:
    """Yield the borrowers of nodes of the gang's team that leave for it though they need not by their priority."""
    if not snapshot.borrowing or not gang.team:
        return
    for other in snapshot.borrowing.values():
        if not outranks(gang, other) and lent_nodes(snapshot, gang, other):
            yield other
