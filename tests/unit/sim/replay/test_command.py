"""`muster simulate` as it is typed: what it prints, what it draws, what it refuses."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from muster.cli.main import run
from tests.unit.sim.replay.test_traces import DATA

MODEL = ("simulate", "--like", "kalos", "--nodes", "20", "--days", "2", "--jobs", "80", "--mtbf-hours", "50")


def data(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run([*arguments, "-o", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_the_same_command_prints_the_same_json(capsys: pytest.CaptureFixture[str]) -> None:
    first, again = data(capsys, *MODEL), data(capsys, *MODEL)
    assert first == again
    assert first["jobs"] == 80
    assert first["nodeFailures"] > 0
    assert {"p50S", "p90S", "p99S", "gpusMin", "mtbfHours"} <= first["queue"][0].keys()
    assert first["overTime"][0]["hour"] == 0.0
    assert data(capsys, *MODEL, "--seed", "1") != first


def test_replay_of_a_trace_on_its_cluster_is_reported_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", str(DATA / "openb_pods.csv"), "--cluster", str(DATA / "openb_nodes.csv")]) == 0
    out = capsys.readouterr().out
    assert "OpenB: 4 jobs (0 gangs, 4 pods), 4 nodes with 12 GPUs" in out
    assert "Left out: 1 never scheduled" in out
    assert "WAIT P50" in out
    assert "FROM DAY" in out
    assert "fragmentation" in out


def test_on_nodes_that_are_all_alike_cpu_and_memory_come_with_the_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    reported = data(capsys, "simulate", str(DATA / "openb_pods.csv"), "--nodes", "2")
    assert reported["leftOut"] == {"never scheduled": 1, "no node has their GPU model": 2}
    assert (reported["jobs"], reported["started"], reported["done"]) == (2, 2, 2)


def test_a_trace_has_no_failures_unless_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    trace = ("simulate", str(DATA / "acme_seren.csv"), "--nodes", "8", "--days", "30")
    assert data(capsys, *trace)["nodeFailures"] == 0
    assert data(capsys, *trace, "--mtbf-hours", "100", "--gpus", "4")["leftOut"] == {"no GPUs": 1}


@pytest.mark.slow
def test_a_plot_is_the_same_for_the_same_replay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drawn = []
    for number in range(2):
        pictures = [tmp_path / f"{number}.{form}" for form in ("svg", "png")]
        data(capsys, *MODEL, "--plot", str(pictures[0]), "--plot", str(pictures[1]))
        drawn.append([path.read_bytes() for path in pictures])
    assert drawn[0] == drawn[1]
    svg, png = drawn[0]
    assert svg.startswith(b"<?xml")
    assert b"</svg>" in svg
    assert png.startswith(b"\x89PNG\r\n")
    assert len(png) > 10_000


def test_a_plot_without_the_library_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert run([*MODEL, "--plot", "x.svg"]) == 2
    assert "pip install 'muster[plots]'" in capsys.readouterr().err


TRACE = str(DATA / "acme_seren.csv")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a trace"),
        ([TRACE, "--like", "kalos", "--nodes", "1"], "name a trace"),
        ([TRACE], "how large the cluster is"),
        ([TRACE, "--nodes", "1", "--cluster", "x"], "how large the cluster is"),
        ([TRACE, "--nodes", "-1"], "invalid value for '--nodes'"),
        ([TRACE, "--nodes", "1", "--days", "-2"], "invalid value for '--days'"),
        ([TRACE, "--nodes", "1", "--mtbf-hours", "-2"], "invalid value for '--mtbf-hours'"),
        ([TRACE, "--nodes", "1", "--plot", "x.jpg"], "must end in .svg or .png"),
        ([TRACE, "--nodes", "1", "--plot", "none/x.svg"], "there is no folder"),
        ([TRACE, "--nodes", "1", "--min-gpus", "16"], "no jobs to replay"),
        (["none.csv", "--nodes", "1"], "none.csv: cannot be read: No such file or directory"),
        ([str(DATA / "openb_nodes.csv"), "--nodes", "1"], "openb_nodes.csv:1: "),
        ([TRACE, "--cluster", TRACE], "acme_seren.csv:1: no column sn"),
        (["--like", "philly", "--nodes", "9", "--min-gpus", "100"], "no job of this model has 100 to 72 GPUs"),
    ],
)
def test_invalid_trace_is_refused_with_status_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["simulate", *arguments]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert shown.out == ""
