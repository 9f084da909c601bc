"""Output of commands: plain columns, JSON or YAML; colour only on a terminal."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TextIO

import click

from muster.api.visible import visible
from muster.cli.control_bytes import json_escaped, unguarded

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

_GAP = 3
_NARROWEST = 20
_CELL_MIN = 4
_CUT_TO = 20
"""A wide last column is cut first, but not below this width."""


def colored(stream: TextIO | None = None) -> bool:
    """Returns whether to colour output to `stream` (default: stdout).

    It is coloured if it is a terminal, TERM is not `dumb`, and NO_COLOR is not set.
    """
    stream = stream or sys.stdout
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def interactive() -> bool:
    """Returns whether a live display makes sense: stdout is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", None)


def paint(text: str, color: str = "", *, bold: bool = False, stream: TextIO | None = None) -> str:
    """Colour `text` if output to `stream` is coloured."""
    return click.style(text, fg=color or None, bold=bold or None) if text and colored(stream) else text


def phase(text: str) -> str:
    """Return the name of a job's phase in its colour."""
    return paint(text, PHASE_COLORS.get(text, ""))


def note(text: str) -> None:
    """Print a note on stderr, so that stdout holds only the command's data."""
    click.echo("\n".join(fitted(visible(text), stream=sys.stderr)), err=True)


def console() -> Console:
    """Return a console of the library rich on stdout, for live displays."""
    from rich.console import Console

    return Console(highlight=False, file=unguarded(sys.stdout))


def say(text: str, *, head: str = "", hang: int | None = None) -> None:
    """Print text for people on stdout, wrapped to the terminal's width.

    Args:
        text: untrusted text of a user, a program or an object. This function escapes it.
        head: trusted text at the beginning of the first line. It may have colours.
        hang: indentation of the lines after the first one; by default the length of `head`.
    """
    used = len(click.unstyle(head))
    hang = used if hang is None else hang
    first, *rest = visible(text).split("\n")
    lines = [*_folded(first, used, hang), *(part for line in rest for part in _folded(line, hang, hang))]
    click.echo("\n".join([head + lines[0][used:], *lines[1:]]).rstrip(" "))


def say_command(line: str) -> None:
    """Print a command that the user can copy, never wrapped. A comment after it is left out if it does not fit."""
    room = text_width()
    click.echo(f"  {visible(line if not room or len(line) + 2 <= room else line.partition('   #')[0])}")


def fitted(text: str, *, indent: int = 0, stream: TextIO | None = None) -> list[str]:
    """Wrap a text between words to the terminal's width less `indent` columns."""
    return [part[indent:] for line in text.split("\n") for part in _folded(line, indent, indent, stream)]


def _folded(line: str, start: int, hang: int, stream: TextIO | None = None) -> list[str]:
    """Wrap a line.

    The first part begins with `start` spaces, which the caller may overwrite, and the other parts with `hang` spaces.
    """
    room = text_width(stream)
    if not room or start + len(line) <= room:
        return [" " * start + line]
    own = len(line) - len(line.lstrip(" "))
    wide = max(room, hang + own + _NARROWEST)
    before, after = " " * (start + own), " " * (hang + own)
    words = line.lstrip(" ")
    folded = textwrap.wrap(words, wide, initial_indent=before, subsequent_indent=after, break_on_hyphens=False)
    return folded or [before]


def text_width(stream: TextIO | None = None) -> int:
    """Return the width for text: that of the terminal, or COLUMNS; 0 means no limit."""
    if (stream or sys.stdout).isatty() or os.environ.get("COLUMNS", "").isdigit():
        return shutil.get_terminal_size().columns
    return 0


def print_table(headers: Sequence[str], rows: Sequence[Sequence[str]], optional: Sequence[str] = ()) -> None:
    """Print aligned columns, all of them if stdout is not a terminal.

    If a terminal is too narrow, columns in `optional` are dropped: first the empty ones, then the others in order. A
    note on stderr names the dropped columns that were not empty. If the rows are still too wide, cells are cut.
    """
    rows = [[visible(cell.replace("\n", " ")) for cell in row] for row in rows]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    kept = list(range(len(headers)))
    widths = [max(len(row[column]) for row in (headers, *rows)) for column in kept]
    if room and sum(widths) + _GAP * (len(widths) - 1) > room:
        silent = {name for column, name in enumerate(headers) if all(row[column] == "-" for row in rows)}
        silent &= set(optional)
        kept = [column for column in kept if headers[column] not in silent]
        optional = [name for name in optional if name not in silent]
    left_out = []
    for name in optional:
        if not room or _least(widths, kept) <= room:
            break
        if name in headers:
            kept.remove(headers.index(name))
            left_out.append(name)
    if room:
        _narrow(widths, kept, room)
    for number, row in enumerate((headers, *rows)):
        cells = []
        for column in kept:
            cell = row[column]
            if len(cell) > widths[column]:
                cell = cell[: widths[column] - 1] + "…"
            padding = "" if column == kept[-1] else " " * (widths[column] - len(cell) + _GAP)
            cells.append((paint(cell, bold=True) if number == 0 else phase(cell)) + padding)
        click.echo("".join(cells).rstrip())
    if left_out:
        note(f"the terminal is too narrow for these columns: {', '.join(left_out)}")


def _narrow(widths: list[int], kept: Sequence[int], room: int) -> None:
    """Make columns narrower until a row fits: the last one first, down to 20, then the widest one, down to 4."""
    last = kept[-1]
    while (over := sum(widths[column] + _GAP for column in kept) - _GAP - room) > 0:
        if widths[last] > _CUT_TO:
            widths[last] = max(widths[last] - over, _CUT_TO)
            continue
        widest = max(kept, key=lambda column: widths[column])
        if widths[widest] <= _CELL_MIN:
            return
        widths[widest] -= 1


def _least(widths: Sequence[int], kept: Sequence[int]) -> int:
    """Return the width of a row of these columns if only the last column is cut, as far as allowed."""
    return sum(widths[column] + _GAP for column in kept[:-1]) + min(widths[kept[-1]], _CUT_TO)


def print_data(data: Any, form: str) -> None:
    """Print plain data as `json` or `yaml`."""
    if form == "json":
        click.echo(json_escaped(json.dumps(data, indent=2, ensure_ascii=False)))
        return
    import yaml

    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
    # With allow_unicode, YAML does not escape all characters that act on a terminal. So if the text contains one, write
    # it again with every non-ASCII character escaped.
    if visible(text) != text:
        text = yaml.safe_dump(data, sort_keys=False)
    click.echo(text, nl=False)


def output_option(*forms: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Create the option `-o/--output` with these formats. The command's parameter is `output`, "" by default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(forms or ("json", "yaml")),
        callback=lambda context, parameter, value: value or "",
        help="Print data in this format.",
    )


def age(since: datetime | None, now: datetime | None = None) -> str:
    """Returns the age as kubectl writes it: 12s, 5m, 3h, 4d."""
    if since is None:
        return "-"
    return duration(((now or datetime.now(UTC)) - since).total_seconds())


def duration(seconds: float) -> str:
    """Format a length of time in one or two units: 12s, 5m, 2m30s, 3h12m, 4d."""
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
