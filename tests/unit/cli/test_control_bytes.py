r"""Issue 11.11: bytes of ranks, jobs and nodes do not act on the terminal; they are written out, such as \x07."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime

import click
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from muster.api.training_job import TrainingJob
from muster.api.training_job_status import Fault
from muster.api.visible import visible
from muster.cli import main, output
from muster.cli.control_bytes import guarded, json_escaped, unguarded
from muster.cli.jobs.describe import events
from muster.cli.jobs.follow import JobView
from muster.cli.jobs.status import print_status
from muster.cli.ranks.logs import print_lines
from muster.cli.ranks.stacks import report
from muster.kube.objects.struct import decode

NASTY = "a\x1b]0;title\x07b\x08c\x00d\x9b31me\u202ef\u2066g\x7fh\x1b[31mred\x1b[0m\x1b[2Ji\rj"
SHOWN = r"a\x1b]0;title\x07b\x08c\x00d\x9b31me\u202ef\u2066g\x7fhred\x1b[2Ji\x0dj"
ACTING = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *"\u202a\u202b\u202c\u202d\u202e\u2066\u2069\u200f"}
ACTING -= {"\n", "\t"}


def job(message: str = NASTY) -> TrainingJob:
    fault = {
        "attempt": 1,
        "cause": "user",
        "rule": "rank-failed",
        "slot": 0,
        "node": message,
        "message": message,
        "time": "2026-01-01T00:00:00Z",
    }
    document = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "j", "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"replicas": 1, "image": "i", "command": ["x"]},
        "status": {"phase": "Failed", "attempt": 1, "message": message, "faults": [fault]},
    }
    return decode(json.dumps(document).encode(), TrainingJob)


class Terminal(io.StringIO):
    """A stdout that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_everything_that_acts_is_written_out_and_colours_go() -> None:
    assert visible(NASTY) == SHOWN
    assert visible("tab\tline\nümläut 漢字 🙂") == "tab\tline\nümläut 漢字 🙂"


def test_colours_stay_where_they_are_wanted_and_end_with_the_line() -> None:
    shown = visible(NASTY, colors=True)
    assert shown == SHOWN.replace("red", "\x1b[31mred\x1b[0m") + "\x1b[0m"
    assert visible("plain", colors=True) == "plain"


@given(st.text())
def test_no_character_that_acts_is_left(text: str) -> None:
    assert not ACTING & set(visible(text))
    document = json.dumps({"key": text}, ensure_ascii=False)
    assert json.loads(json_escaped(document)) == {"key": text}
    assert not ACTING & set(json_escaped(document))


def test_output_of_every_command_is_escaped(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def command() -> None:
        click.echo(NASTY)
        print(NASTY, file=sys.stderr)

    monkeypatch.setattr(main.LazyGroup, "get_command", lambda *_: command)
    assert main.run(["list"]) == 0
    said = capsys.readouterr()
    for text in (said.out, said.err):
        assert not ACTING - {"\x1b"} & set(text)
        assert "\x1b]" not in text


@pytest.mark.parametrize("terminal", [False, True])
def test_status_follow_and_tables_show_no_colour_of_the_program(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    print_status(job(), [], datetime.now(UTC))
    output.print_table(("A", "B"), [(NASTY, "b"), ("c", NASTY)])
    output.note(NASTY)
    view = JobView()
    for line in events(None, job()):
        view.say(line)
    text = stream.getvalue()
    assert SHOWN in text
    assert not ACTING & set(text)


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_data_is_the_same_data_and_does_not_act(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    output.print_data({"message": NASTY}, form)
    text = capsys.readouterr().out
    assert not ACTING & set(text)
    assert yaml.safe_load(text) == {"message": NASTY}


def test_logs_keep_colours_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for stream, colored in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stdout", stream)
        print_lines(0, 1, [NASTY])
        assert ("\x1b[31mred" in stream.getvalue()) is colored
        assert "\x1b]0" not in stream.getvalue()


def test_stacks_show_no_control_byte_and_no_colour_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    said = {"rank": 0, "slot": 0, "node": "n", "pid": 7, "source": "handler", "why": NASTY, "state": ""}
    lines = report([{**said, "threads": [[NASTY]]}], 4)
    assert "rank 0 of 4 " in lines[0], "also if one rank was asked for"
    assert lines[1:] == [f"  {SHOWN}"] * 2


def test_guard_is_a_stream_like_the_one_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    before = sys.stdout
    with guarded():
        assert sys.stdout is not before
        assert unguarded(sys.stdout) is before
        sys.stdout.writelines(["a\x07\n"])
        assert sys.stdout.encoding == before.encoding
    assert sys.stdout is before
    assert capsys.readouterr().out == "a\\x07\n"


def test_fault_struct_is_what_the_test_means() -> None:
    assert isinstance(job().status.faults[0], Fault)
