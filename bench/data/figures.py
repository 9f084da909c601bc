"""The figures, goals and tables of the bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from rich.table import Table

from bench.data.processes import Measured
from bench.report import Goal, Report, at_least, spread

Results = Mapping[str, Mapping[str, Sequence[Measured]]]
"""Part, side, repetitions."""

COLD_SHARE_MIN = 0.9


def ratios(side: Sequence[Measured], limit: Sequence[Measured]) -> list[float]:
    """The throughput of a side as a share of the limit's in the same repetition."""
    return [ours.mb_per_s / theirs.mb_per_s for ours, theirs in zip(side, limit, strict=False)]


def fastest(sides: Mapping[str, Sequence[Measured]], names: Sequence[str]) -> Sequence[Measured]:
    """The repetitions of the side with the highest median."""
    present = [sides[name] for name in names if sides.get(name)]
    return max(present, key=lambda side: median(each.mb_per_s for each in side), default=())


def report(results: Results, total_bytes: int) -> Report:
    """Returns all figures, and the goals of the parts that ran."""
    figures: dict[str, float] = {"shards_bytes": total_bytes}
    goals: list[Goal] = []
    for part, sides in results.items():
        for side, repetitions in sides.items():
            name = f"{part}_{side}"
            spread(f"{name}_mb_per_s", [each.mb_per_s for each in repetitions], figures)
            spread(f"{name}_cpu_s_per_gb", [each.cpu_s_per_gb for each in repetitions], figures)
            spread(f"{name}_peak_mb", [each.peak_mb for each in repetitions], figures)
    if "cold" in results:
        goals += _cold(results["cold"], figures)
    return Report("data", figures, goals)


def _cold(sides: Mapping[str, Sequence[Measured]], figures: dict[str, float]) -> list[Goal]:
    limit = fastest(sides, ("obstore_whole", "obstore_ranges"))
    for name in sides:
        spread(f"cold_{name}_share", ratios(sides[name], limit), figures)
    return [at_least("cold streaming, share of obstore alone", COLD_SHARE_MIN, figures.get("cold_muster_stream_share"))]


def tables(results: Results) -> list[Table]:
    """One table a part: throughput, CPU and memory of each side."""
    made = []
    for part, sides in results.items():
        table = Table("side", "MB/s", "CPU s/GB", "peak MB", title=part)
        for side, repetitions in sides.items():
            table.add_row(
                side,
                _range([each.mb_per_s for each in repetitions], 0),
                _range([each.cpu_s_per_gb for each in repetitions], 2),
                _range([each.peak_mb for each in repetitions], 0),
            )
        made.append(table)
    return made


def _range(values: Sequence[float], digits: int) -> str:
    if not values:
        return ""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"
