"""What people ask about a node or a pool: whose, since when, why; and what is free."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from muster.api.trust import GPU
from muster.kube.quantity import to_int
from muster.teams.holdings import Holdings
from muster.teams.plan import Plan
from muster.teams.poolstate import Held
from muster.teams.record import NOBODY
from muster.teams.usage import Rank


class NodeAccount(msgspec.Struct, frozen=True, rename="camel"):
    """Why a node is as it is.

    Attributes:
        node: its name.
        team: whose it is; "" where it belongs to the rest.
        since, why, by: what our record says; None and "" where there is none.
        by_hand: somebody else labelled it.
        pool: the allocation's selector; "" where none selects it.
        healthy: ready, not cordoned, not in quarantine.
        gangs: what runs or keeps a slot there and counts, borrowers left out.
        borrowers: what is there until the owner wants the node.
        becomes: whose it is to be; None where nothing is to change.
        because: why that.
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
    """What a pool has, in nodes; "" is what no allocation selects.

    Attributes:
        pool: its selector.
        nodes, healthy: all of it, and those of use.
        owned, rest: of teams, and of nobody.
        busy, lent, idle: healthy nodes by what is on them: gangs, borrowers alone, nothing.
        gpus, gpus_idle: GPUs of healthy nodes, and of the idle ones of them.
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
    """Say why a node is as it is, and what the plan has for it. Raises KeyError for an unknown node."""
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
    """Yield the pools in the ConfigMap's order, then what none of them selects where there is such a node."""
    pools: dict[str, list[Held]] = {pool.name: [] for pool in holdings.pools}
    for held in holdings.nodes.values():
        pools.setdefault(held.pool.name if held.pool is not None else "", []).append(held)
    for name, members in pools.items():
        healthy = [held for held in members if not held.broken]
        ranks = [held.rank for held in healthy]
        owned = sum(held.owner != NOBODY for held in members)
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
