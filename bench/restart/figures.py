"""Figures, goals and the table, from what each fault came to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from statistics import median

from rich.table import Table

from bench.audit import total
from bench.report import Goal, Report, at_most, spread
from bench.restart.cluster import FAULTS, Fault
from bench.restart.outcome import RANKS_RUNNING, Outcome

STAGES = ("detected", "stopped", "placed", "ready", "running", RANKS_RUNNING, "useful")
RESTART_S_MAX = 10.0
RESTART_RANKS = 512
WRITES_GROWTH_MAX = 8
"""Progress is written on a clock, and the restart of a larger gang may take a little longer."""


def report(outcomes: Sequence[Outcome], loads: Sequence[float] = ()) -> Report:
    """All figures; goals for what was measured. `loads` are load averages: others may have had the machine too."""
    figures: dict[str, float] = {"cores": os.cpu_count() or 0}
    spread("load_average", loads, figures)
    for (side, ranks, fault), group in _groups(outcomes):
        name = f"{side}_{ranks}_{fault}"
        for stage in STAGES:
            label = stage.replace(" ", "_")
            spread(f"{name}_{label}_s", [one.stages[stage] for one in group if stage in one.stages], figures)
        spread(f"{name}_detected_to_ranks_running_s", _restarts(group), figures)
        spread(f"{name}_writes", [total(one.writes) for one in group], figures)
    return Report("restart", figures, _goals(outcomes))


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Medians for people, with the spread of the last stage."""
    table = Table(title="seconds from the fault (median), and writes to the API server", title_justify="left")
    for column in ("ranks", "fault", "side", *STAGES, "worst", "writes"):
        table.add_column(column, justify="left" if column in ("fault", "side") else "right")
    for (side, ranks, fault), group in sorted(_groups(outcomes), key=lambda entry: (entry[0][1], entry[0][2])):
        cells = [_cell([one.stages[stage] for one in group if stage in one.stages]) for stage in STAGES]
        worst = max(one.stages[RANKS_RUNNING] for one in group)
        writes = median([total(one.writes) for one in group])
        table.add_row(str(ranks), fault, side, *cells, f"{worst:.2f}", f"{writes:g}")
    return [table]


def _goals(outcomes: Sequence[Outcome]) -> list[Goal]:
    ours = [one for one in outcomes if one.side == "muster"]
    goals = []
    for fault in FAULTS:
        at_size = [one for one in ours if one.ranks == RESTART_RANKS and one.fault == fault]
        name = f"{fault}: seconds from detection to all {RESTART_RANKS} ranks running, in every repetition"
        goals.append(at_most(name, RESTART_S_MAX, max(_restarts(at_size), default=None)))
    sizes = sorted({one.ranks for one in ours})
    if len(sizes) < 2:
        return goals
    for fault in FAULTS:
        few, many = (_writes(ours, size, fault) for size in (sizes[0], sizes[-1]))
        grown = None if few is None or many is None else many - few
        name = f"{fault}: writes more for {sizes[-1]} ranks than for {sizes[0]}"
        goals.append(at_most(name, WRITES_GROWTH_MAX, grown))
    return goals


def _restarts(group: Iterable[Outcome]) -> list[float]:
    return [one.stages[RANKS_RUNNING] - one.stages["detected"] for one in group if "detected" in one.stages]


def _writes(outcomes: Sequence[Outcome], ranks: int, fault: Fault) -> float | None:
    values = [total(one.writes) for one in outcomes if (one.ranks, one.fault) == (ranks, fault)]
    return median(values) if values else None


def _groups(outcomes: Sequence[Outcome]) -> list[tuple[tuple[str, int, Fault], list[Outcome]]]:
    groups: dict[tuple[str, int, Fault], list[Outcome]] = {}
    for one in outcomes:
        groups.setdefault((one.side, one.ranks, one.fault), []).append(one)
    return list(groups.items())


def _cell(values: Sequence[float]) -> str:
    return f"{median(values):.2f}" if values else ""
