"""Forecasts of starts in replays: they rest on jobs that ended, hold as often as promised."""

from __future__ import annotations

import json
import random

import msgspec
import pytest

from muster.cli.main import run as command
from muster.sim.replay.job import Job, Workload, job_of_gpus, uniform_nodes, with_restartable
from muster.sim.replay.replay import Conditions, Outcome, Replay
from muster.sim.replay.report import Report, summarise


def play(jobs: list[Job], nodes: int, *, forecasts: bool = True) -> tuple[Outcome, Report]:
    conditions = Conditions(forecasts=forecasts)
    outcome = Replay(uniform_nodes(nodes, 8), jobs, conditions).run()
    return outcome, summarise(Workload("test", jobs), nodes, conditions, outcome)


def job(number: int, submit_s: float, run_s: float, nodes: int = 1) -> Job:
    return job_of_gpus(f"job-{number:04}", submit_s, run_s, nodes * 8, 8)


def test_jobs_that_always_run_equally_long_start_as_forecast() -> None:
    jobs = [job(number, 1.0 * number, 1000.0) for number in range(40)]
    outcome, report = play(jobs, 1)
    with_forecast = [run for run in outcome.runs if run.forecast is not None]
    assert len(with_forecast) > 20
    assert outcome.runs[5].forecast is None, "the history begins with ten jobs"
    for run in with_forecast:
        assert run.forecast is not None
        assert run.started_s is not None
        assert run.forecast[0] == pytest.approx(run.started_s, rel=0.01)
        assert run.forecast[1] is not None
        assert run.started_s < run.forecast[1] < 1.1 * run.started_s
    assert report.forecasts.made == len(with_forecast)


def test_job_that_starts_at_once_has_no_forecast() -> None:
    outcome, report = play([job(number, 2000.0 * number, 1000.0) for number in range(40)], 1)
    assert all(run.forecast is None for run in outcome.runs)
    assert (report.forecasts.waited, report.forecasts.made, report.forecasts.mean_hours) == (0, 0, None)


def busy(count: int, rng: random.Random, scale_s: float, start_s: float = 0.0, first: int = 0) -> list[Job]:
    """Jobs of 1 to 4 nodes with heavy-tailed run times, which keep 8 nodes busy for about 85% of the time."""
    jobs, now = [], start_s
    for number in range(first, first + count):
        nodes = rng.choice([1, 1, 2, 4])
        jobs.append(job(number, now, rng.lognormvariate(0.0, 1.2) * scale_s, nodes))
        now += rng.expovariate(1 / (2.0 * 2.05 * scale_s / 8 / 0.85))
    return jobs


@pytest.mark.slow
def test_forecasts_hold_as_often_as_promised() -> None:
    jobs = with_restartable(Workload("test", busy(500, random.Random(3), 3600.0)), 1.0, 1).jobs
    forecasts = play(list(jobs), 8)[1].forecasts
    assert forecasts.made > 300
    assert 0.75 <= forecasts.held / forecasts.made <= 0.85


@pytest.mark.slow
def test_replay_without_forecasts_has_the_same_placements() -> None:
    jobs = busy(60, random.Random(5), 3600.0)
    with_forecasts, without = play(jobs, 8), play(jobs, 8, forecasts=False)
    assert with_forecasts[0].placements_hash == without[0].placements_hash
    assert with_forecasts[1].forecasts.made > 0 == without[1].forecasts.made


@pytest.mark.slow
def test_placements_do_not_depend_on_the_history() -> None:
    """Until the scheduler uses predictions, a replay with users has the placements of one without."""
    jobs = busy(60, random.Random(5), 3600.0)
    named = [msgspec.structs.replace(each, user=f"user-{at % 3}", image="repo/train") for at, each in enumerate(jobs)]
    assert play(jobs, 8)[0].placements_hash == play(named, 8)[0].placements_hash


@pytest.mark.slow
def test_report_never_contains_infinity(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", "--like", "kalos", "--nodes", "4", "--days", "2", "-o", "json"]
    assert command(arguments) == 0
    text = capsys.readouterr().out
    assert "Infinity" not in text
    assert "NaN" not in text
    forecasts = json.loads(text)["forecasts"]
    assert forecasts["made"] > 0
    assert 0 <= forecasts["held"] <= forecasts["made"] <= forecasts["waited"]
