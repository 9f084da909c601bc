"""Computes the target of each owner in a pool: total nodes, and how many of them healthy."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from muster.teams.poolstate import Cell, PoolState
from muster.teams.record import UNOWNED
from muster.teams.shares import share_out, wanted

HEALTHY, BROKEN = False, True


class Target(msgspec.Struct, frozen=True):
    """Target of an owner: its request, its entitlement, and the healthy part of that."""

    asked: int
    entitled: int
    healthy: int

    @property
    def broken(self) -> int:
        """Number of broken nodes in its share."""
        return self.entitled - self.healthy


def targets_of(pool: PoolState) -> dict[str, Target]:
    """Return the targets of all owners, in the ConfigMap's order, UNOWNED last. They add up to the whole pool.

    An owner with nodes set by hand is entitled to at least those. Broken nodes go to the rest first. If the rest is
    too small, the teams take the others in proportion.
    """
    asked = wanted(pool.config, pool.total)
    by_hand = {owner: _all(pool.by_hand, owner) for owner in _owners(pool)}
    weights = asked | {owner: count for owner, count in by_hand.items() if owner not in asked and owner != UNOWNED}
    most = {owner: max(weight, by_hand.get(owner, 0)) for owner, weight in weights.items()}
    entitled = share_out(min(pool.total, sum(most.values())), weights, by_hand, most)
    least_healthy = {owner: pool.by_hand.get((owner, HEALTHY), 0) for owner in entitled}
    most_healthy = {owner: count - pool.by_hand.get((owner, BROKEN), 0) for owner, count in entitled.items()}
    healthy = sum(count for (_, broken), count in pool.count.items() if not broken)
    seats = min(healthy, sum(most_healthy.values()))

    def gain(owner: str, seats: int) -> int:
        return _moves(pool, owner, entitled[owner], seats) - _moves(pool, owner, entitled[owner], seats + 1)

    shared = share_out(seats, entitled, least_healthy, most_healthy, gain)
    found = {owner: Target(weights[owner], count, shared[owner]) for owner, count in entitled.items()}
    for owner in sorted(_owners(pool) - found.keys() - {UNOWNED}):
        found[owner] = Target(0, 0, 0)
    rest = pool.total - sum(entitled.values())
    found[UNOWNED] = Target(0, rest, healthy - seats)
    return found


def _moves(pool: PoolState, owner: str, entitled: int, healthy: int) -> int:
    """Return how many nodes the owner would have to give away."""
    return max(0, pool.count.get((owner, HEALTHY), 0) - healthy) + max(
        0, pool.count.get((owner, BROKEN), 0) - (entitled - healthy)
    )


def _owners(pool: PoolState) -> set[str]:
    return {owner for (owner, _), count in pool.count.items() if count}


def _all(count: dict[Cell, int], owner: str) -> int:
    return count.get((owner, HEALTHY), 0) + count.get((owner, BROKEN), 0)


def cells(targets: dict[str, Target]) -> Iterator[tuple[str, bool, int]]:
    """Yield (owner, broken, target number of nodes)."""
    for owner, target in targets.items():
        yield owner, HEALTHY, target.healthy
        yield owner, BROKEN, target.broken
