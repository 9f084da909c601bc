"""Counts how many nodes each team owns, uses, lends and borrows; shared by the scheduler, teams and the CLI."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Literal, NamedTuple

import msgspec

State = Literal["owned", "used", "lent", "borrowed"]


class NodeUser(NamedTuple):
    """The team of a pod or of a reserved slot ("": unknown), and whether it only borrows its node."""

    team: str
    borrows: bool


class TeamNodes(msgspec.Struct, frozen=True):
    """The nodes of one team.

    Attributes:
        owned: nodes that the team owns.
        used: owned nodes that the team's own pods use. Such a node may also count as lent.
        lent: owned nodes that borrowers of other teams use.
        borrowed: nodes of other teams that the team's borrowers use.
    """

    owned: int = 0
    used: int = 0
    lent: int = 0
    borrowed: int = 0


def states_of(owner: str, users: Collection[NodeUser]) -> Iterator[tuple[str, State]]:
    """Yield pairs of a team and its relation to one node, each at most once. A node without an owner ("") is not lent.

    A borrower on a node of its own team counts as any other pod of the team.
    """
    if not owner:
        return
    yield owner, "owned"
    borrowers = {user.team for user in users if user.borrows and user.team != owner}
    if any(user.team == owner for user in users):
        yield owner, "used"
    if borrowers:
        yield owner, "lent"
    for team in borrowers - {""}:
        yield team, "borrowed"


def by_team(counts: Mapping[tuple[str, State], int]) -> dict[str, TeamNodes]:
    """Return counts of (team, state) by team, in order of their names."""
    teams: dict[str, dict[str, int]] = {}
    for (team, state), count in sorted(counts.items()):
        if count:
            teams.setdefault(team, {})[state] = count
    return {team: TeamNodes(**found) for team, found in teams.items()}
