"""What commands print: plain columns, JSON or YAML, with colour only where a person looks at it."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import click

if TYPE_CHECKING:
    from rich.console import Console

PHASE_COLORS = {
    "Pending": "yellow",
    "Starting": "yellow",
    "Restarting": "yellow",
    "Stopping": "yellow",
    "Running": "green",
    "Succeeded": "green",
    "Failed": "red",
    "Suspended": "blue",
}


def colored(stream: TextIO | None = None) -> bool:
    """Whether to colour what is written to `stream` (stdout): a terminal, no NO_COLOR, not a dumb one."""
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def interactive() -> bool:
    """Whether a live display makes sense: stdout is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", None)


def paint(text: str, color: str = "", *, bold: bool = False, stream: TextIO | None = None) -> str:
    """`text` in a colour where `stream` is coloured; as it is elsewhere."""
    return click.style(text, fg=color or None, bold=bold or None) if text and colored(stream) else text


def phase(text: str) -> str:
    """A phase in its colour."""
    return paint(text, PHASE_COLORS.get(text, ""))


def note(text: str) -> None:
    """Say something that is not the command's data: stderr, so that pipes stay clean."""
    click.echo(text, err=True)


def console() -> Console:
    """A rich console on stdout, for live displays."""
    from rich.console import Console

    return Console(highlight=False)


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print aligned columns; on a terminal the last one is cut to fit, elsewhere nothing is lost."""
    widths = [max(len(row[column]) for row in (headers, *rows)) for column in range(len(headers))]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for number, row in enumerate((headers, *rows)):
        cells = []
        used = 0
        for column, cell in enumerate(row):
            last = column == len(row) - 1
            if last and room and len(cell) > room - used:
                cell = cell[: max(room - used - 1, 0)] + "…"
            padding = "" if last else " " * (widths[column] - len(cell) + 3)
            shown = paint(cell, bold=True) if number == 0 else phase(cell)
            cells.append(shown + padding)
            used += len(cell) + len(padding)
        click.echo("".join(cells).rstrip())


def print_data(data: Any, form: str) -> None:
    """Print plain data as `json` or `yaml`."""
    if form == "json":
        click.echo(json.dumps(data, indent=2, ensure_ascii=False))
        return
    import yaml

    click.echo(yaml.safe_dump(data, sort_keys=False, allow_unicode=True), nl=False)


def output_option(*forms: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option `-o/--output` with the given forms; the parameter is called `output` and is "" by default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(forms or ("json", "yaml")),
        callback=lambda context, parameter, value: value or "",
        help="Print data in this form.",
    )


def age(since: datetime | None, now: datetime | None = None) -> str:
    """How long ago, as kubectl says it: 12s, 5m, 3h, 4d."""
    if since is None:
        return "-"
    return duration(((now or datetime.now(UTC)) - since).total_seconds())


def duration(seconds: float) -> str:
    """A length of time in one or two units: 12s, 5m, 2m30s, 3h12m, 4d."""
    whole = max(int(seconds), 0)
    if whole < 120:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 10 and rest:
        return f"{minutes}m{rest}s"
    if minutes < 120:
        return f"{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h{minutes}m" if minutes and hours < 10 else f"{hours}h"
    return f"{hours // 24}d"
