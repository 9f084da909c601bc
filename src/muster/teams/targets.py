"""What each owner of a pool's nodes is to have: how many in all, how many of them healthy."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from muster.teams.poolstate import Cell, PoolState
from muster.teams.record import NOBODY
from muster.teams.sharing import share_out, wanted

HEALTHY, BROKEN = False, True


class Target(msgspec.Struct, frozen=True):
    """What one owner asked for, is entitled to, and how much of that is to be healthy."""

    asked: int
    entitled: int
    healthy: int

    @property
    def broken(self) -> int:
        """How many broken ones it has to bear."""
        return self.entitled - self.healthy


def targets_of(pool: PoolState) -> dict[str, Target]:
    """Return the targets of all owners, in the ConfigMap's order, NOBODY last; together they are the whole pool.

    Who owns nodes by hand is entitled to those at least. Broken nodes stay with the rest as far as that goes; what is
    left of them is borne by the teams in proportion.
    """
    asked = wanted(pool.config, pool.total)
    by_hand = {owner: _all(pool.by_hand, owner) for owner in _owners(pool)}
    weights = asked | {owner: count for owner, count in by_hand.items() if owner not in asked and owner != NOBODY}
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
    for owner in sorted(_owners(pool) - found.keys() - {NOBODY}):
        found[owner] = Target(0, 0, 0)
    rest = pool.total - sum(entitled.values())
    found[NOBODY] = Target(0, rest, healthy - seats)
    return found


def _moves(pool: PoolState, owner: str, entitled: int, healthy: int) -> int:
    """How many nodes the owner would have to give away."""
    return max(0, pool.count.get((owner, HEALTHY), 0) - healthy) + max(
        0, pool.count.get((owner, BROKEN), 0) - (entitled - healthy)
    )


def _owners(pool: PoolState) -> set[str]:
    return {owner for (owner, _), count in pool.count.items() if count}


def _all(count: dict[Cell, int], owner: str) -> int:
    return count.get((owner, HEALTHY), 0) + count.get((owner, BROKEN), 0)


def cells(targets: dict[str, Target]) -> Iterator[tuple[str, bool, int]]:
    """Each owner and health with the number of nodes there are to be."""
    for owner, target in targets.items():
        yield owner, HEALTHY, target.healthy
        yield owner, BROKEN, target.broken
