"""Prints the result of a bench: a table for people on stderr, one JSON object as the last line of stdout."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec
from rich.console import Console
from rich.table import Table


class Goal(msgspec.Struct, frozen=True):
    """A goal, the measured value, and whether it is met."""

    name: str
    want: str
    got: float | None
    met: bool


class Report(msgspec.Struct, frozen=True):
    """The result of one bench. `figures` are plain numbers, the unit last in the name."""

    bench: str
    figures: Mapping[str, float]
    goals: Sequence[Goal] = ()


def at_most(name: str, limit: float, got: float | None) -> Goal:
    """A goal that holds when `got` is there and not above `limit`."""
    return Goal(name, f"<= {limit:g}", None if got is None else round(got, 3), got is not None and got <= limit)


def at_least(name: str, limit: float, got: float | None) -> Goal:
    """A goal that holds when `got` is there and not below `limit`."""
    return Goal(name, f">= {limit:g}", None if got is None else round(got, 3), got is not None and got >= limit)


def spread(name: str, values: Sequence[float], figures: dict[str, float]) -> None:
    """Add the median under `name`, and the least and the most under names derived from it."""
    if not values:
        return
    for suffix, value in (("", median(values)), ("_min", min(values)), ("_max", max(values))):
        figures[name + suffix] = round(value, 3)


def console() -> Console:
    """Returns the console for people; if it is a file, it is wide enough for a table."""
    return Console(stderr=True, width=None if sys.stderr.isatty() else 140)


def emit(report: Report, target: str, tables: Sequence[Table]) -> None:
    """Print the tables and goals on stderr and the report as JSON on stdout; also into `target` unless it is `-`."""
    out = console()
    for table in tables:
        out.print(table)
    for goal in report.goals:
        mark = "[green]met[/]" if goal.met else "[red]not met[/]"
        out.print(f"{mark}  {goal.name}: want {goal.want}, got {goal.got}")
    line = msgspec.json.encode(report)
    if target != "-":
        Path(target).write_bytes(line + b"\n")
    sys.stdout.write(line.decode() + "\n")
    sys.stdout.flush()
