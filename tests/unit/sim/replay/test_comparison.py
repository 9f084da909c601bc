"""`muster simulate --policy` with several policies: side by side as text, as JSON and as a picture."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest

from muster.cli.main import run

MODEL = ("simulate", "--like", "kalos", "--nodes", "20", "--days", "2", "--jobs", "400", "--seed", "2")
ALL = (*MODEL, "--policy", "strict,easy,preemptible")
FEW = ("simulate", "--like", "kalos", "--nodes", "20", "--days", "1", "--jobs", "60", "--seed", "2")


@pytest.fixture(scope="module")
def reports() -> Any:
    """The reports of all policies."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        assert run([*ALL, "-o", "json"]) == 0
    return json.loads(said.getvalue())["reports"]


def data(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run([*arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_several_policies_replay_the_same_jobs(reports: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert [each["policy"] for each in reports] == ["strict", "easy", "preemptible"]
    assert {each["jobs"] for each in reports} == {each["restartable"] for each in reports} == {400}
    strict, easy, preemptible = reports
    assert strict["placementsHash"] == easy["placementsHash"], "without time limits nothing is backfilled"
    assert strict["idleWhileRestartableFits"] > 0.01
    assert strict["asked"] == 0
    assert preemptible["idleWhileRestartableFits"] < 0.01
    assert preemptible["asked"] > 0
    assert data(capsys, *ALL)["reports"] == reports


@pytest.mark.slow
def test_report_of_one_policy_is_the_same_as_beside_others(reports: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert data(capsys, *MODEL) == reports[2]
    assert data(capsys, *MODEL, "--policy", "strict") == reports[0]


@pytest.mark.slow
def test_share_of_restartable_jobs_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    none, half = (data(capsys, *MODEL, "--restartable", share) for share in ("0", "0.5"))
    assert (none["restartable"], none["idleWhileRestartableFits"]) == (0, 0.0)
    assert 150 < half["restartable"] < 250


@pytest.mark.slow
def test_policies_are_printed_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*ALL]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "400 jobs are restartable"
    columns = {line[:30].strip(): line[30:].split() for line in lines if line[:1].islower()}
    assert lines[3].split() == ["TOTAL", "STRICT", "EASY", "PREEMPTIBLE"]
    strict, easy, preemptible = columns["where a restartable job fits"]
    assert strict == easy != preemptible
    assert columns["of backfilled jobs"][:2] == ["0", "0"]
    header = next(line for line in lines if line.startswith("GPUS"))
    assert header.split() == ["GPUS", "JOBS", "STRICT", "EASY", "PREEMPTIBLE"]


@pytest.mark.slow
def test_plot_of_several_policies_has_a_column_for_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = []
    for number in range(2):
        path = tmp_path / f"{number}.svg"
        data(capsys, *FEW, "--policy", "strict,easy,preemptible", "--plot", str(path))
        drawn.append(path.read_text())
    assert drawn[0] == drawn[1]
    assert drawn[0].count('<g id="axes_') == 9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--policy", "strict,fast"], "'fast' is not a policy; the policies are strict, easy, preemptible"),
        (["--policy", "strict,"], "'' is not a policy"),
        (["--policy", "easy,easy"], "each policy may be named once"),
        (["--restartable", "1.5"], "1.5 is not in the range 0<=x<=1"),
        (["--restartable", "nan"], "--restartable"),
    ],
)
def test_invalid_policy_or_share_is_refused_with_status_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*MODEL, *arguments]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
