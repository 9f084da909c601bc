"""Computes each team's number of nodes in a pool, reduced in proportion if there are not enough.

Nodes are shared by largest remainders (Hamilton's method) between a minimum and a maximum per team. Rounding changes
a share by less than one node, and a team never gets more than it asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from muster.teams.config import PoolConfig

Gain = Callable[[str, int], int]
"""For a team and its number of seats: how many changes of owner one more seat saves."""


def wanted(pool: PoolConfig, total: int) -> dict[str, int]:
    """Return each team's request of `total` nodes: counts as given, percentages rounded so that they add up."""
    asked = {share.team: share.count for share in pool.shares}
    percents = [share for share in pool.shares if share.percent is not None]
    exact = {share.team: (share.percent or Fraction(0)) * total / 100 for share in percents}
    left = int(sum(exact.values(), Fraction(0)))
    for team, part in exact.items():
        asked[team] = int(part)
        left -= int(part)
    by_remainder = sorted(
        exact, key=lambda team: int(exact[team]) - exact[team]
    )  # stable: ties by the ConfigMap's order
    for team in by_remainder[:left]:
        asked[team] += 1
    return asked


def share_out(
    seats: int,
    weights: Mapping[str, int],
    least: Mapping[str, int],
    most: Mapping[str, int],
    gain: Gain | None = None,
) -> dict[str, int]:
    """Share `seats` in proportion to `weights`, each team between its minimum and its maximum.

    Ties between equal remainders are broken by fewer changes of owner, then by the order of `weights`.

    Args:
        seats: between the sums of all `least` and all `most`.
        weights: by team; a team of weight 0 gets its minimum.
        least: minimum by team, 0 if absent.
        most: maximum by team.
        gain: changes of owner that one more seat saves; None for no preference.
    """
    if seats >= sum(most[team] for team in weights):
        return {team: most[team] for team in weights}
    shared: dict[str, int] = {}
    free = list(weights)
    while True:
        total = sum(weights[team] for team in free)
        if not total:
            return shared | {team: least.get(team, 0) for team in free}
        low = [team for team in free if seats * weights[team] < least.get(team, 0) * total]
        high = [team for team in free if seats * weights[team] > most[team] * total]
        if not (low or high):
            break
        # Fix the limit with the larger deviation first: this may already resolve the other one.
        missing = sum(least.get(team, 0) * total - seats * weights[team] for team in low)
        spare = sum(seats * weights[team] - most[team] * total for team in high)
        if missing >= spare:
            shared.update((team, least.get(team, 0)) for team in low)
        if spare >= missing:
            shared.update((team, most[team]) for team in high)
        settled = [team for team in free if team in shared]
        seats -= sum(shared[team] for team in settled)
        free = [team for team in free if team not in shared]
    return shared | _by_remainder(seats, total, {team: weights[team] for team in free}, gain)


def _by_remainder(seats: int, total: int, weights: Mapping[str, int], gain: Gain | None) -> dict[str, int]:
    shared = {team: seats * weight // total for team, weight in weights.items()}
    left = seats - sum(shared.values())

    def order(team: str) -> tuple[int, int]:
        saved = gain(team, shared[team]) if gain is not None else 0
        return (-(seats * weights[team] % total), -saved)

    for team in sorted(weights, key=order)[:left]:
        shared[team] += 1
    return shared
