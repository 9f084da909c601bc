"""Small pieces of the command line, each through what it is called with."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.cli import main
from muster.cli.errors import CliError, ExitCode, from_api_error
from muster.cli.jobs.watch import nearest
from muster.cli.output import age, duration
from muster.cli.ranks.log_lines import AttemptReader, LogLine
from muster.cli.ranks.remote import exit_status
from muster.kube import errors


def test_lines_know_their_attempt_from_the_markers() -> None:
    reader = AttemptReader(1)
    lines = reader.feed(b"before\n--- muster: attempt 2 of train\nin two\n--- muster: att")
    lines += reader.feed(b"empt 3\nin three\r\nrest")
    lines += reader.end()
    assert lines == [
        LogLine("before", 1),
        LogLine("--- muster: attempt 2 of train", 2),
        LogLine("in two", 2),
        LogLine("--- muster: attempt 3", 3),
        LogLine("in three", 3),
        LogLine("rest", 3),
    ]


def test_lines_know_their_rank() -> None:
    reader = AttemptReader(1)
    log = b"""early
--- muster: attempt 1: node 1 of 2, mpi, from the beginning ---
[rank 2] two
[rank 3] three
[mpiexec] noise
--- muster: attempt 1: rank 3 ended with exit code 1 (rank exited) ---
--- muster: attempt 2: node 0 of 2, mpi, from the beginning ---
[rank 1] one
"""
    lines = reader.feed(log)
    found = {rank: [line.text for line in lines if line.of_rank(rank, 2, named=True)] for rank in range(4)}
    assert [text for text in found[2] if not text.startswith("---")] == ["[rank 2] two"]
    assert [text for text in found[3] if not text.startswith("---")] == ["[rank 3] three"]
    assert [text for text in found[1] if not text.startswith("---")] == ["[rank 1] one"]
    assert len(found[3]) == 3
    assert len(found[0]) == 1
    assert next(line.text for line in lines if line.of_rank(1, 1, named=False)).startswith(
        "--- muster: attempt 1: node 1"
    )


@given(st.lists(st.text(alphabet="ab\n", max_size=20)))
def test_however_the_bytes_are_cut_the_lines_are_the_same(pieces: list[str]) -> None:
    whole = "".join(pieces)
    reader = AttemptReader(1)
    lines = [line.text for piece in pieces for line in reader.feed(piece.encode())]
    lines += [line.text for line in reader.end()]
    assert lines == whole.removesuffix("\n").split("\n") if whole else lines == []


def test_a_line_without_end_does_not_grow_for_ever() -> None:
    reader = AttemptReader(1)
    kept = [line for _ in range(100) for line in reader.feed(b"x" * 4096)]
    assert sum(len(line.text) for line in [*kept, *reader.end()]) == 409_600
    assert len(kept) > 1


def test_exit_status_of_a_remote_command() -> None:
    failed = {"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "7"}]}}
    assert exit_status(json.dumps({"status": "Success"}).encode()) == 0
    assert exit_status(json.dumps(failed).encode()) == 7
    with pytest.raises(CliError, match="no such file"):
        exit_status(json.dumps({"status": "Failure", "message": "no such file"}).encode())


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.Unauthorized(401, "Unauthorized", "Unauthorized"), ExitCode.NO_CLUSTER),
        (errors.Forbidden(403, "Forbidden", "no"), ExitCode.FAILED),
        (errors.NotFound(404, "NotFound", 'pods "x" not found'), ExitCode.NOT_FOUND),
        (errors.NotFound(404, "NotFound", "the server could not find the requested resource"), ExitCode.NO_CLUSTER),
        (errors.AlreadyExists(409, "AlreadyExists", "there"), ExitCode.CONFLICT),
        (errors.Conflict(409, "Conflict", "changed"), ExitCode.CONFLICT),
        (errors.Invalid(422, "Invalid", "wrong"), ExitCode.BAD_INPUT),
        (errors.ServerTimeout(504, "Timeout", "slow"), ExitCode.TIMED_OUT),
        (errors.Unavailable(0, "", "refused"), ExitCode.NO_CLUSTER),
        (errors.ApiError(500, "InternalError", "oops"), ExitCode.FAILED),
    ],
)
def test_each_refusal_has_its_exit_status(error: errors.ApiError, code: ExitCode) -> None:
    translated = from_api_error(error)
    assert translated.exit_code == code
    assert translated.message


@pytest.mark.parametrize(
    ("name", "found"),
    [("t", ["t-9ccj6", "t-b2b2b"]), ("trian", ["train"]), ("t-9ccj", ["t-9ccj6"]), ("other", [])],
)
def test_names_that_may_have_been_meant(name: str, found: list[str]) -> None:
    assert nearest(name, ["train", "t-b2b2b", "t-9ccj6", "training-x"]) == found


def test_ages_as_kubectl_says_them() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert age(None) == "-"
    assert age(now - timedelta(seconds=5), now) == "5s"
    said = [duration(seconds) for seconds in (0, 119, 150, 600, 7200, 3 * 3600 + 720, 4 * 86400)]
    assert said == ["0s", "119s", "2m30s", "10m", "2h", "3h12m", "4d"]


def test_a_network_namespace_without_root_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Issue 11: each node failed with "Cannot find device" ten seconds later."""
    monkeypatch.setenv("MUSTER_STATE_DIR", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main.run(["up", "--network", "netns"]) == ExitCode.BAD_INPUT
    assert "--network netns needs root" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
