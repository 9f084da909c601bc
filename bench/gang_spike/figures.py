"""Figures, goals and the table, from what each spike came to."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from statistics import median

from rich.table import Table

from bench.gang_spike.outcome import Outcome
from bench.gang_spike.shape import Shape
from bench.report import Goal, Report, at_least, at_most, spread

SHARE_MIN = 0.8
"""Of the speed of the raw limit."""
CPU_S_MAX, RSS_MB_MAX = 3.0, 200.0
LARGE_GANG = Shape(1, 5000)
"""The goals for CPU and memory are about this shape."""

Group = list[Outcome]


def report(outcomes: Sequence[Outcome], nodes: int, loads: Sequence[float] = ()) -> Report:
    """All figures; goals for the shapes measured. `loads` are load averages: others may have had the machine too."""
    figures: dict[str, float] = {"cores": os.cpu_count() or 0, "nodes": nodes}
    spread("load_average", loads, figures)
    groups = _groups(outcomes)
    for (shape, side), group in groups.items():
        name = f"{side}_{shape}"
        spread(f"{name}_created_s", [one.created_s for one in group], figures)
        spread(f"{name}_first_bound_s", [one.first_bound_s for one in group if one.first_bound_s is not None], figures)
        spread(f"{name}_all_bound_s", _all_bound(group), figures)
        spread(f"{name}_pods_per_s", [one.pods_per_s for one in group if one.pods_per_s is not None], figures)
        spread(f"{name}_share_of_raw", _shares(groups, shape, side), figures)
        spread(f"{name}_cpu_to_bound_s", [one.cpu_to_bound_s for one in group if one.cpu_to_bound_s], figures)
        spread(f"{name}_cpu_share_of_raw", _shares(groups, shape, side, _cpu_to_bound_s), figures)
        for role in sorted({role for one in group for role in one.cpu_s}):
            spread(f"{name}_{role}_cpu_s", [one.cpu_s[role] for one in group if role in one.cpu_s], figures)
        spread(f"{name}_rss_peak_mb", [one.rss_peak_mb for one in group if one.rss_peak_mb is not None], figures)
        late = [one for one in group if one.all_bound_s is None]
        if late:
            figures[f"{name}_unfinished"] = len(late)
            spread(f"{name}_unfinished_bound_pods", [one.bound for one in late], figures)
            spread(f"{name}_unfinished_whole_gangs", [one.whole_gangs for one in late], figures)
    return Report("gang_spike", figures, _goals(groups))


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Medians for people, with the spread of the seconds until all pods were bound."""
    table = Table(title="from the first create to the last bound pod, medians", title_justify="left")
    for column in (
        "gangs",
        "side",
        "all bound s",
        "least-most",
        "pods/s",
        "of raw",
        "by CPU",
        "first bound s",
        "CPU s",
        "RSS MB",
    ):
        table.add_column(column, justify="left" if column in ("gangs", "side") else "right")
    groups = _groups(outcomes)
    for (shape, side), group in groups.items():
        seconds = _all_bound(group)
        table.add_row(
            str(shape),
            side,
            _cell(seconds) if seconds else f"{max(one.bound for one in group)} bound",
            f"{min(seconds):.1f}-{max(seconds):.1f}" if seconds else "",
            _cell([one.pods_per_s for one in group if one.pods_per_s is not None], "{:.0f}"),
            _cell(_shares(groups, shape, side), "{:.0%}"),
            _cell(_shares(groups, shape, side, _cpu_to_bound_s), "{:.0%}"),
            _cell([one.first_bound_s for one in group if one.first_bound_s is not None]),
            _cell([one.cpu_s["scheduler"] for one in group if "scheduler" in one.cpu_s]),
            _cell([one.rss_peak_mb for one in group if one.rss_peak_mb is not None], "{:.0f}"),
        )
    return [table]


def _goals(groups: dict[tuple[Shape, str], Group]) -> list[Goal]:
    goals = []
    for shape in sorted({shape for shape, _ in groups}):
        ours = groups.get((shape, "muster"), [])
        shares = _shares(groups, shape, "muster")
        unfinished = any(one.all_bound_s is None for one in ours)
        got = None if unfinished or not shares else median(shares)
        goals.append(at_least(f"{shape}: share of the raw limit's speed, median", SHARE_MIN, got))
        if shape == LARGE_GANG:
            cpu = [one.cpu_s["scheduler"] for one in ours]
            memory = [one.rss_peak_mb for one in ours if one.rss_peak_mb is not None]
            goals.append(at_most(f"{shape}: CPU seconds of the scheduler, median", CPU_S_MAX, _median(cpu)))
            goals.append(at_most(f"{shape}: most MB resident in any repetition", RSS_MB_MAX, max(memory, default=None)))
    return goals


def _all_bound_s(one: Outcome) -> float | None:
    return one.all_bound_s


def _cpu_to_bound_s(one: Outcome) -> float | None:
    """CPU seconds until all pods are bound.

    If all cores are busy, they determine the elapsed time, and other work on the machine affects them less.
    """
    return one.cpu_to_bound_s


def _shares(
    groups: dict[tuple[Shape, str], Group],
    shape: Shape,
    side: str,
    took: Callable[[Outcome], float | None] = _all_bound_s,
) -> list[float]:
    """Of each repetition, against the raw limit measured just before or after it."""
    limits = {one.repetition: took(one) for one in groups.get((shape, "raw"), [])}
    shares = []
    for one in groups.get((shape, side), []):
        limit, own = limits.get(one.repetition), took(one)
        if limit and own:
            shares.append(limit / own)
    return shares


def _all_bound(group: Group) -> list[float]:
    return [one.all_bound_s for one in group if one.all_bound_s is not None]


def _groups(outcomes: Sequence[Outcome]) -> dict[tuple[Shape, str], Group]:
    groups: dict[tuple[Shape, str], Group] = {}
    for one in outcomes:
        groups.setdefault((one.shape, one.side), []).append(one)
    return groups


def _median(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def _cell(values: Sequence[float], form: str = "{:.1f}") -> str:
    return form.format(median(values)) if values else ""
