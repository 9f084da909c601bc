"""Warnings about pools: requests above capacity, broken nodes, and labels set by hand."""

from __future__ import annotations

from collections.abc import Iterator

from muster.api.names import LABEL_TEAM
from muster.api.words import counted
from muster.teams.cache import Holdings
from muster.teams.plan import Caution, Why
from muster.teams.poolstate import PoolState
from muster.teams.record import UNOWNED
from muster.teams.targets import BROKEN, Target


def cautions_of(holdings: Holdings, pool: PoolState, targets: dict[str, Target]) -> Iterator[Caution]:
    """Yield the warnings; they are equal while their cause does not change."""
    teams = {owner: target for owner, target in targets.items() if owner != UNOWNED}
    asked = sum(target.asked for target in teams.values())
    if asked > pool.total:
        got = ", ".join(f"{team} {target.entitled} of {target.asked}" for team, target in teams.items() if target.asked)
        said = f"{asked} nodes are asked for and {pool.total} are there, cut in proportion: {got}"
        yield Caution(Why.OVER_ASKED, said, pool.name)
    short = {team: target.broken for team, target in teams.items() if target.broken}
    if short:
        broken = sum(count for (_, is_broken), count in pool.count.items() if is_broken is BROKEN)
        got = ", ".join(f"{team} {targets[team].healthy} of {targets[team].entitled}" for team in short)
        said = f"{counted(broken, 'broken node')}, and not enough are left over to replace them: healthy are {got}"
        yield Caution(Why.SHORT, said, pool.name)
    named = {share.team for share in pool.config.shares}
    for team, target in teams.items():
        by_hand = pool.by_hand.get((team, False), 0) + pool.by_hand.get((team, True), 0)
        if by_hand > (target.asked if team in named else 0):
            allowed = f"asks for {target.asked}" if team in named else "is in none of its allocations"
            yield Caution(Why.BY_HAND, f"{team} has {by_hand} nodes by hand and {allowed}", pool.name)
        if team in named and target.asked and not holdings.has_namespace(team):
            key = holdings.config.namespace_key if holdings.config is not None else LABEL_TEAM
            said = f"no namespace belongs to {team}, which is given nodes: label one {key}={team}"
            yield Caution(Why.UNKNOWN_TEAM, said, pool.name)
