"""The fair shares by their definition, for comparison: slow, exact, and not the allocator's algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TypeVar

from fuzz.uplink.nodes import SimPod


def fair_rates(pods: Mapping[str, SimPod], way: int, budget_bps: int, weights: Mapping[str, int]) -> dict[str, float]:
    """Return each pod's rate: max-min fair among teams by weight, then by priority, then among pods."""
    teams: dict[str, list[SimPod]] = {}
    for pod in pods.values():
        teams.setdefault(pod.team, []).append(pod)
    needs = {team: sum(pod.demand[way] for pod in each) for team, each in teams.items()}
    shares = pour(needs, {team: weights.get(team, 1) for team in teams}, Fraction(budget_bps))
    rates: dict[str, float] = {}
    for team, each in teams.items():
        left = shares[team]
        for priority in sorted({pod.priority for pod in each}, reverse=True):
            group = {pod.uid: pod.demand[way] for pod in each if pod.priority == priority}
            given = pour(group, dict.fromkeys(group, 1), left)
            left -= sum(given.values())
            rates.update((uid, float(rate)) for uid, rate in given.items())
    return rates


K = TypeVar("K")


def pour(needs: Mapping[K, int], weights: Mapping[K, int], water: Fraction) -> dict[K, Fraction]:
    """Raise all levels by weight together, until each need is met or the water is used up."""
    levels = dict.fromkeys(needs, Fraction(0))
    thirsty = {name for name, need in needs.items() if need > 0}
    while thirsty and water > 0:
        weight = sum(weights[name] for name in thirsty)
        step = min(*((needs[name] - levels[name]) / weights[name] for name in thirsty), water / weight, water)
        for name in thirsty:
            levels[name] += step * weights[name]
        water -= step * weight
        thirsty = {name for name in thirsty if levels[name] < needs[name]}
    return levels
