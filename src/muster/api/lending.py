"""How many nodes each team owns, uses, lends and borrows: one count for the scheduler, for teams and for the CLI."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec


class NodeUser(NamedTuple):
    """Whose a pod, or a slot kept for one, is ("": nobody says), and whether it only borrows the node it is on."""

    team: str
    borrows: bool


class TeamNodes(msgspec.Struct, frozen=True):
    """The nodes of one team.

    Attributes:
        owned: nodes that are the team's.
        used: those of them that its own pods use; a node can be lent besides.
        lent: those of them that borrowers of other teams use.
        borrowed: nodes of other teams that its borrowers use.
    """

    owned: int = 0
    used: int = 0
    lent: int = 0
    borrowed: int = 0


def count_nodes(nodes: Iterable[tuple[str, Iterable[NodeUser]]]) -> dict[str, TeamNodes]:
    """Count, by team: `nodes` are (owner, who uses it) of each node; those that nobody owns ("") are lent by nobody.

    A borrower on a node of its own team uses it as any other pod of the team does.
    """
    counts: dict[str, list[int]] = {}
    for owner, users in nodes:
        if not owner:
            continue
        mine = counts.setdefault(owner, [0, 0, 0, 0])
        mine[0] += 1
        teams = {(user.team, user.borrows) for user in users}
        borrowers = {team for team, borrows in teams if borrows and team != owner}
        mine[1] += any(team == owner for team, _ in teams)
        mine[2] += bool(borrowers)
        for team in borrowers - {""}:
            counts.setdefault(team, [0, 0, 0, 0])[3] += 1
    return {team: TeamNodes(*found) for team, found in sorted(counts.items())}
