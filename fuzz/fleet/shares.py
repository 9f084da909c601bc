"""The teams' shares of a pool and their sizes in nodes, computed without the product's code."""

from __future__ import annotations

import random
from fractions import Fraction

import msgspec


class Shares(msgspec.Struct, frozen=True):
    """Counts and percent by team."""

    count: dict[str, int] = {}
    percent: dict[str, int] = {}

    def owned(self, nodes: int) -> dict[str, int]:
        """The least that each team has in a pool of so many nodes, where no more is asked for than there is."""
        return {**self.count, **{team: nodes * part // 100 for team, part in self.percent.items()}}

    def rest(self, nodes: int) -> int:
        """Returns the number of nodes without an owner, at least one."""
        return max(1, nodes - sum(self.count.values()) - self.of_percent(nodes))

    def of_percent(self, nodes: int) -> int:
        """Returns the number of nodes for all percentages together."""
        return int(Fraction(sum(self.percent.values()) * nodes, 100))


def draw_shares(rng: random.Random, teams: tuple[str, ...], nodes: int) -> Shares:
    """Draw shares of so many nodes; at least one node has no owner."""
    left = max(0, nodes - 1)
    count: dict[str, int] = {}
    percent: dict[str, int] = {}
    for team in rng.sample(teams, len(teams)):
        most = rng.randint(min(1, left), max(1, left - 1)) if left else 0
        if rng.random() < 0.4:
            percent[team] = min(100 - sum(percent.values()), 100 * most // nodes)
            left -= -(-nodes * percent[team] // 100)
        else:
            count[team] = most
            left -= most
        left = max(0, left)
    return Shares(count, percent)
