"""The figures, goals and tables of the bench."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from rich.table import Table

from bench.data.processes import Measured
from bench.report import Goal, Report, at_least, at_most, spread

Results = Mapping[str, Mapping[str, Sequence[Measured]]]
"""Part, side, repetitions."""

COLD_SHARE_MIN = 0.9
WARM_SHARE_MIN = 0.8
BLOCKED_SHARE_MAX = 0.05
DOWNLOADS_MAX = {"readers": 1.01, "gang": 1.1}
"""Bytes that the bucket sends for each byte of the shards; headers of answers and the index come on top."""


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
            if downloads := [each.downloads for each in repetitions if each.downloads]:
                spread(f"{name}_downloads", downloads, figures)
    if "cold" in results:
        goals += _cold(results["cold"], figures)
    if "warm" in results:
        goals += _warm(results["warm"], figures)
    if "saves" in results:
        goals += _saves(results["saves"], figures)
    goals += [
        at_most(text, DOWNLOADS_MAX[part], max((each.downloads for each in side), default=None))
        for part, text in (("readers", "readers of a node, downloads"), ("gang", "gang, downloads of the bucket"))
        for side in results.get(part, {}).values()
    ]
    return Report("data", figures, goals)


def _cold(sides: Mapping[str, Sequence[Measured]], figures: dict[str, float]) -> list[Goal]:
    limit = fastest(sides, ("obstore_whole", "obstore_ranges"))
    for name in sides:
        spread(f"cold_{name}_share", ratios(sides[name], limit), figures)
    return [at_least("cold streaming, share of obstore alone", COLD_SHARE_MIN, figures.get("cold_muster_stream_share"))]


def _warm(sides: Mapping[str, Sequence[Measured]], figures: dict[str, float]) -> list[Goal]:
    for name, limit in (("cached_files", "plain_files"), ("streamed_cache", "streamed_files")):
        spread(f"warm_{name}_share", ratios(sides[name], sides[limit]), figures)
    return [
        at_least("warm bytes, share of a plain file read", WARM_SHARE_MIN, figures.get("warm_cached_files_share")),
        at_least("warm samples, share of plain files", WARM_SHARE_MIN, figures.get("warm_streamed_cache_share")),
    ]


def _saves(sides: Mapping[str, Sequence[Measured]], figures: dict[str, float]) -> list[Goal]:
    for name, side in sides.items():
        spread(f"saves_{name}_blocked_s", [each.blocked_s for each in side], figures)
    pairs = zip(sides["muster_background_save"], sides["muster_save"], strict=True)
    spread("saves_blocked_share", [late.blocked_s / whole.blocked_s for late, whole in pairs], figures)
    name = "background save, blocked share of a save in the foreground"
    return [at_most(name, BLOCKED_SHARE_MAX, figures.get("saves_blocked_share"))]


def tables(results: Results) -> list[Table]:
    """One table a part: throughput, CPU and memory of each side."""
    made = []
    for part, sides in results.items():
        table = Table("side", "MB/s", "CPU s/GB", "peak MB", "bucket sent", "blocked s", title=part)
        for side, repetitions in sides.items():
            table.add_row(
                side,
                _range([each.mb_per_s for each in repetitions], 0),
                _range([each.cpu_s_per_gb for each in repetitions], 2),
                _range([each.peak_mb for each in repetitions], 0),
                _range([each.downloads for each in repetitions if each.downloads], 2),
                _range([each.blocked_s for each in repetitions if each.blocked_s], 3),
            )
        made.append(table)
    return made


def _range(values: Sequence[float], digits: int) -> str:
    if not values:
        return ""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"
