"""Decides which nodes change teams. Pure: equal holdings give equal plans. After a plan is executed, the next is empty.

The rules:

- Every node has one owner: a team, or the rest. Together they are the pool.
- As few nodes as possible change teams. A node goes directly from an owner with too many nodes to one with too few.
- Idle nodes go first, then nodes with borrowers. A node with a running gang changes teams after the gang has ended,
  unless the configuration says otherwise.
- A broken node is exchanged for a healthy node of the rest. When the broken node recovers, no node moves. So if a
  node breaks again and again, it causes only one exchange.
- A node that was labelled by hand keeps that owner.
- Without a configuration, nodes keep their owners.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec

from muster.api.names import LABEL_TEAM
from muster.api.words import counted
from muster.teams.cache import Holdings
from muster.teams.plan import Caution, Change, Plan, Standing, Why
from muster.teams.poolstate import Held, PoolState
from muster.teams.record import UNOWNED, TeamRecord
from muster.teams.targets import BROKEN, HEALTHY, Target, cells, targets_of
from muster.teams.usage import Rank

BY = "muster"


def decide(holdings: Holdings, now: float, by: str = BY) -> Plan:
    """Return the changes that give teams the nodes they are entitled to.

    Args:
        holdings: nodes, pods, configuration.
        now: seconds since the epoch, for the records.
        by: name of the writing process, for the records.
    """
    since = datetime.fromtimestamp(int(now), UTC)
    changes: list[Change] = []
    cautions: list[Caution] = [holdings.caution] if holdings.caution is not None else []
    standings: list[Standing] = []
    leaving = set(holdings.moving)
    config = holdings.config
    if config is not None and config.pools:
        busy = config.running_gangs == "Move"
        for pool in holdings.pools:
            targets = targets_of(pool)
            waiting = _Moves(holdings, pool, targets, since, by, busy=busy).make(changes, leaving)
            standings += _standings(pool, targets, waiting)
            cautions += _cautions_of(holdings, pool, targets)
        changes += _strays(holdings, since, by, busy=busy)
        leaving.update(name for names in holdings.strays.values() for name in names)
    moved = {change.node for change in changes}
    changes += [_restored(holdings, holdings.nodes[name]) for name in sorted(holdings.damaged - moved)]
    return Plan(tuple(changes), tuple(cautions), tuple(standings), frozenset(leaving))


class _Moves:
    """Changes of ownership in one pool."""

    def __init__(
        self,
        holdings: Holdings,
        pool: PoolState,
        targets: dict[str, Target],
        since: datetime,
        by: str,
        *,
        busy: bool,
    ) -> None:
        self._nodes = holdings.nodes
        self._key = holdings.team_key or ""
        self._pool = pool
        self._targets = targets
        self._since, self._by, self._busy = since, by, busy

    def make(self, changes: list[Change], leaving: set[str]) -> dict[str, int]:
        """Add the changes, and the nodes that pods must leave. Return how many nodes each owner still waits for."""
        waiting: dict[str, int] = {}
        for health in (HEALTHY, BROKEN):
            missing: dict[str, int] = {}
            names: list[str] = []
            for owner, broken, target in cells(self._targets):
                if broken is not health:
                    continue
                there = self._pool.count.get((owner, broken), 0)
                if there > target:
                    going = self._pool.first(owner, broken, there - target)
                    leaving.update(going)
                    names += [name for name in going if self._busy or self._nodes[name].rank is not Rank.BUSY]
                elif there < target:
                    missing[owner] = target - there
            given = self._given(missing, len(names), health)
            names.sort()
            at = 0
            for owner, count in given.items():
                changes += [self._change(self._nodes[name], owner) for name in names[at : at + count]]
                at += count
            for owner, count in missing.items():
                waiting[owner] = waiting.get(owner, 0) + count - given.get(owner, 0)
        return waiting

    def _given(self, missing: dict[str, int], count: int, broken: bool) -> dict[str, int]:
        """Return each owner's share of `count` nodes if fewer than needed are available; the least served go first."""
        if count >= sum(missing.values()):
            return missing
        given = dict.fromkeys(missing, 0)
        order: list[tuple[bool, float, int, str]] = []

        def put(place: int, owner: str) -> None:
            target = self._targets[owner]
            part = target.broken if broken else target.healthy
            has = self._pool.count.get((owner, broken), 0) + given[owner]
            if given[owner] < missing[owner]:
                heapq.heappush(order, (owner == UNOWNED, has / part, place, owner))

        for place, owner in enumerate(missing):
            put(place, owner)
        for _ in range(count):
            _, _, place, owner = heapq.heappop(order)
            given[owner] += 1
            put(place, owner)
        return given

    def _change(self, held: Held, owner: str) -> Change:
        why, text = self._reason(held, owner)
        return _change(held, owner, why, text, self._key, self._since, self._by)

    def _reason(self, held: Held, owner: str) -> tuple[Why, str]:
        name, former = self._pool.name, held.owner
        if former != UNOWNED and self._owned(former) > self._targets[former].entitled:
            if owner == UNOWNED:
                return (
                    Why.RELEASED,
                    f"{former} is entitled to {counted(self._targets[former].entitled, 'node')} of {name}",
                )
        elif held.broken:
            if owner == UNOWNED:
                return Why.BROKEN, f"broken: {former} has another node of {name} instead"
            return Why.BROKEN, f"broken nodes of {name} are shared out among its teams"
        if owner != UNOWNED and self._owned(owner) < self._targets[owner].entitled:
            return Why.ALLOCATED, f"{owner} is entitled to {counted(self._targets[owner].entitled, 'node')} of {name}"
        return Why.REPLACES, f"in place of a broken node of {name}"

    def _owned(self, owner: str) -> int:
        return self._pool.count.get((owner, HEALTHY), 0) + self._pool.count.get((owner, BROKEN), 0)


def _strays(holdings: Holdings, since: datetime, by: str, *, busy: bool) -> Iterator[Change]:
    """Yield changes that return nodes which no allocation selects to the rest."""
    key = holdings.team_key or ""
    names = [name for rank in (Rank if busy else (Rank.IDLE, Rank.BORROWED)) for name in holdings.strays[rank]]
    for name in sorted(names):
        held = holdings.nodes[name]
        yield _change(held, UNOWNED, Why.LEFT_POOL, "no allocation selects it any more", key, since, by)


def _restored(holdings: Holdings, held: Held) -> Change:
    """Return the change that restores a removed label or taint; the record stays."""
    record = held.claim.record
    assert record is not None, "what is set by hand is never damaged"
    key = holdings.team_key or record.key
    kept = msgspec.structs.replace(record, key=key)
    return Change(held.name, held.node.uid, record.team, Why.RESTORED, kept, record.key)


def _change(held: Held, owner: str, why: Why, text: str, key: str, since: datetime, by: str) -> Change:
    record = TeamRecord(team=owner, since=since, why=text, by=by, key=key)
    former = held.claim.record.key if held.claim.record is not None else ""
    return Change(held.name, held.node.uid, held.owner, why, record, former)


def _standings(pool: PoolState, targets: dict[str, Target], waiting: dict[str, int]) -> Iterator[Standing]:
    shares_by_team = {share.team: str(share) for share in pool.config.shares}
    borrowers = {team for (team, _), count in pool.states.items() if count} - targets.keys()
    for owner, target in (targets | dict.fromkeys(sorted(borrowers), Target(0, 0, 0))).items():
        healthy, broken = pool.count.get((owner, HEALTHY), 0), pool.count.get((owner, BROKEN), 0)
        yield Standing(
            team=owner,
            pool=pool.name,
            asked=shares_by_team.get(owner, ""),
            entitled=target.entitled,
            owned=healthy + broken,
            healthy=healthy,
            used=pool.states[owner, "used"],
            lent=pool.states[owner, "lent"],
            borrowed=pool.states[owner, "borrowed"],
            pending=waiting.get(owner, 0),
            by_hand=pool.by_hand.get((owner, HEALTHY), 0) + pool.by_hand.get((owner, BROKEN), 0),
        )


def _cautions_of(holdings: Holdings, pool: PoolState, targets: dict[str, Target]) -> Iterator[Caution]:
    """Yield the warnings; they are equal while their cause does not change."""
    teams = {owner: target for owner, target in targets.items() if owner != UNOWNED}
    asked = sum(target.asked for target in teams.values())
    if asked > pool.total:
        got = ", ".join(f"{team} {target.entitled} of {target.asked}" for team, target in teams.items() if target.asked)
        message = f"{asked} nodes are asked for and {pool.total} are there, cut in proportion: {got}"
        yield Caution(Why.OVER_ASKED, message, pool.name)
    short = {team: target.broken for team, target in teams.items() if target.broken}
    if short:
        broken = sum(count for (_, is_broken), count in pool.count.items() if is_broken is BROKEN)
        got = ", ".join(f"{team} {targets[team].healthy} of {targets[team].entitled}" for team in short)
        message = (
            f"{counted(broken, 'broken node')}, and too few nodes without a team to replace them: healthy are {got}"
        )
        yield Caution(Why.SHORT, message, pool.name)
    named = {share.team for share in pool.config.shares}
    for team, target in teams.items():
        by_hand = pool.by_hand.get((team, False), 0) + pool.by_hand.get((team, True), 0)
        if by_hand > (target.asked if team in named else 0):
            allowed = f"asks for {target.asked}" if team in named else "is in none of its allocations"
            message = f"{team} has {counted(by_hand, 'node')} labelled by hand and {allowed}"
            yield Caution(Why.BY_HAND, message, pool.name)
        if team in named and target.asked and not holdings.has_namespace(team):
            key = holdings.config.namespace_key if holdings.config is not None else LABEL_TEAM
            message = f"no namespace belongs to {team}, which is given nodes: label one {key}={team}"
            yield Caution(Why.UNKNOWN_TEAM, message, pool.name)
