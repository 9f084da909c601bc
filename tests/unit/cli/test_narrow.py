"""Issue 11.20: what commands print fits 40, 80 and 120 columns."""

from __future__ import annotations

import itertools
import re
import sys
from datetime import UTC, datetime

import click
import pytest

from muster.cli import main, output
from muster.cli.jobs.list import OPTIONAL, WIDE_HEADERS
from muster.cli.jobs.status import print_status
from tests.unit.cli.test_control_bytes import job

WIDTHS = (40, 80, 120)
LONG = (
    "backoffLimit 3 is used up; rank 0 (slot 0 on gpu-node-0017.example) ended with exit code 1: "
    "FileNotFoundError: /shared/teams/vision/experiments/2026-01-02-baseline/checkpoints/step-00012000/model.bin\n"
    "and a second line that is longer than any terminal here has columns, by far, as tracebacks of programs often are"
)


@pytest.fixture(params=WIDTHS)
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.setenv("NO_COLOR", "1")
    return int(request.param)


def longest(text: str) -> int:
    return max(map(len, text.splitlines()))


def test_status_fits_and_says_the_whole_message(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    print_status(job(LONG), [], datetime.now(UTC))
    text = capsys.readouterr().out
    assert longest(text) <= columns
    assert re.sub(r"\s", "", LONG.splitlines()[0]) in re.sub(r"\s", "", text), "folded, not cut"


def test_tables_fit(columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    row = (
        "a-job-with-a-rather-long-name-x7k2q",
        "Restarting",
        "16",
        "16",
        "2",
        "1000/20000",
        "12s ago",
        "1",
        "3h12m",
        "8",
        "mpi",
    )
    output.print_table(WIDE_HEADERS, [(*row, LONG)], OPTIONAL)
    output.print_table(("SLOT", "NODE", "POD", "STATE"), [("0", "gpu-node-0017.example", "y" * 40, "Pending: " + LONG)])
    said = capsys.readouterr()
    assert longest(said.out) <= columns
    assert longest(said.err) <= columns or columns == 120


def test_errors_hints_and_notes_fit(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main.run(["run", "train.py", "--nodes", "no-number"]) == 2
    output.note(LONG)
    assert longest(capsys.readouterr().err) <= columns


def pages(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path]
    for name in group.list_commands(click.Context(group)):
        below = group.get_command(click.Context(group), name)
        found += pages(below, (*path, name)) if isinstance(below, click.Group) else [(*path, name)]
    return found


def test_every_help_page_fits(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    for path in pages(main.cli):
        if path == ("completion",):  # lines to paste into a shell's configuration stay whole
            continue
        main.run([*path, "--help"])
        out = capsys.readouterr().out
        prose = [line for line in out.splitlines() if not line.startswith("  -")]  # a long option stays whole
        assert max(map(len, prose)) <= columns, (path, max(prose, key=len))


def test_columns_of_the_environment_count_in_a_pipe_for_text_and_not_for_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    output.say(LONG)
    assert longest(capsys.readouterr().out) <= 40
    output.print_table(("A", "B"), [(LONG, "b")])
    assert longest(capsys.readouterr().out) > 200, "scripts get whole cells"
    monkeypatch.delenv("COLUMNS")
    output.say(LONG)
    assert capsys.readouterr().out == f"{LONG}\n"


def test_a_command_to_copy_is_not_folded(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    command = "muster logs a-job-with-a-rather-long-name-x7k2q --rank 3"
    output.say_command(f"{command}   # what the rank says")
    assert command in capsys.readouterr().out


def test_folding_keeps_every_word() -> None:
    for width, indent in itertools.product((20, 33, 40), (0, 3, 13)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", str(width))
            lines = output.fitted(LONG, indent=indent)
        assert "".join("".join(lines).split()) == "".join(LONG.split())
