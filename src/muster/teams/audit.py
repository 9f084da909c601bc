"""Reports on nodes and pools for users: owner, since when and why, and free capacity."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from muster.api.trust import GPU
from muster.kube.objects.quantity import to_int
from muster.teams.cache import Holdings
from muster.teams.plan import Plan
from muster.teams.poolstate import Held
from muster.teams.record import UNOWNED
from muster.teams.usage import Rank


class NodeAccount(msgspec.Struct, frozen=True, rename="camel"):
    """Owner and use of a node, with reasons.

    Attributes:
        node: its name.
        team: the owner; "" for none.
        since, why, by: from the node's record; None and "" without a record.
        by_hand: whether a user set the owner, not Muster.
        pool: the allocation's selector; "" if none selects the node.
        healthy: ready, not cordoned, not in quarantine.
        gangs: gangs with pods or slots on the node, except borrowers.
        borrowers: borrowing gangs on the node, which leave when the owner needs it.
        becomes: the next owner; None if it does not change.
        because: reason for the change.
    """

    node: str
    team: str
    since: datetime | None
    why: str
    by: str
    by_hand: bool
    pool: str
    healthy: bool
    gangs: tuple[str, ...]
    borrowers: tuple[str, ...]
    becomes: str | None = None
    because: str = ""


class PoolCapacity(msgspec.Struct, frozen=True, rename="camel"):
    """Capacity of a pool, in nodes; the pool "" holds nodes that no allocation selects.

    Attributes:
        pool: its selector.
        nodes: number of nodes.
        healthy: number of usable nodes.
        owned, rest: number of nodes with and without a team.
        busy, lent, idle: number of healthy nodes that gangs use, that only borrowers use, and that are not used.
        gpus, gpus_idle: GPUs of healthy nodes, and of the idle ones.
    """

    pool: str
    nodes: int = 0
    healthy: int = 0
    owned: int = 0
    rest: int = 0
    busy: int = 0
    lent: int = 0
    idle: int = 0
    gpus: int = 0
    gpus_idle: int = 0


def account_of(holdings: Holdings, name: str, plan: Plan) -> NodeAccount:
    """Return owner and use of a node, and the plan for it. Raises KeyError for an unknown node."""
    held = holdings.nodes[name]
    record = held.claim.record if not held.claim.by_hand else None
    change = next((each for each in plan.changes if each.node == name), None)
    uses = sorted(holdings.uses(name), key=lambda use: use.gang)
    kept = holdings.kept_by(name)
    return NodeAccount(
        node=name,
        team=held.owner,
        since=record.since if record is not None else None,
        why=record.why if record is not None else "",
        by=record.by if record is not None else "",
        by_hand=held.claim.by_hand,
        pool=held.pool.name if held.pool is not None else "",
        healthy=not held.broken,
        gangs=tuple(dict.fromkeys([*(use.gang for use in uses if not use.borrower), *kept])),
        borrowers=tuple(dict.fromkeys(use.gang for use in uses if use.borrower)),
        becomes=change.record.team if change is not None else None,
        because=change.record.why if change is not None else "",
    )


def capacity_of(holdings: Holdings) -> Iterator[PoolCapacity]:
    """Yield the pools in the ConfigMap's order, then the nodes that no pool selects, if any."""
    pools: dict[str, list[Held]] = {pool.name: [] for pool in holdings.pools}
    for held in holdings.nodes.values():
        pools.setdefault(held.pool.name if held.pool is not None else "", []).append(held)
    for name, members in pools.items():
        healthy = [held for held in members if not held.broken]
        ranks = [held.rank for held in healthy]
        owned = sum(held.owner != UNOWNED for held in members)
        yield PoolCapacity(
            pool=name,
            nodes=len(members),
            healthy=len(healthy),
            owned=owned,
            rest=len(members) - owned,
            busy=ranks.count(Rank.BUSY),
            lent=ranks.count(Rank.BORROWED),
            idle=ranks.count(Rank.IDLE),
            gpus=sum(map(_gpus, healthy)),
            gpus_idle=sum(_gpus(held) for held in healthy if held.rank is Rank.IDLE),
        )


def _gpus(held: Held) -> int:
    return to_int(held.node.status.allocatable.get(GPU, 0))
