"""`bench.policies`: the scheduler without reservations, the figures of a replay, and the goals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.policies_figures import figures_of, replayed, together
from bench.policies_greedy import greedy
from muster.sim.replay.job import Job, Shape, job_of_gpus, uniform_nodes
from muster.sim.replay.replay import Conditions, Replay

ROOT = Path(__file__).resolve().parents[3]


def gang(name: str, submit_s: float, run_s: float, nodes: int) -> Job:
    return job_of_gpus(name, submit_s, run_s, nodes * 8, 8)


def test_without_reservations_every_gang_that_fits_starts_in_queue_order() -> None:
    jobs = [
        gang("running", 0.0, 1000.0, 2),
        gang("large", 10.0, 50.0, 3),
        gang("small", 20.0, 2000.0, 1),
        gang("other", 30.0, 50.0, 1),
        Job("pod", 40.0, 10.0, 1, Shape(2), gang=False),
    ]
    outcome = Replay(uniform_nodes(4, 8), jobs, Conditions(), planner=greedy).run()
    waits = {run.job.name: run.started_s for run in outcome.runs}
    assert waits == {"running": 0.0, "large": 1000.0, "small": 20.0, "other": 30.0, "pod": 80.0}


def test_figures_count_every_job_and_only_the_days_of_arrivals() -> None:
    jobs = [gang("a", 0.0, 100.0, 2), gang("b", 50.0, 100.0, 2), gang("c", 60.0, 5.0, 1)]
    conditions = Conditions()
    outcome = Replay(uniform_nodes(2, 8), jobs, conditions).run()
    found = replayed(outcome, conditions, days=100.0 / 86400)
    figures = figures_of(found)
    assert figures["utilisation"] == 1.0
    assert figures["jobs_2_to_7_nodes"] == 2
    assert figures["wait_p90_2_to_7_nodes_s"] == 50.0
    assert figures["wait_p50_up_to_1_node_s"] == 140.0
    assert figures["bounded_slowdown_mean_up_to_1_node"] == 14.5
    both = figures_of(together([found, found]))
    assert (both["jobs_2_to_7_nodes"], both["utilisation"]) == (4, 1.0)


def test_job_that_was_asked_to_leave_counts_as_held_up_and_not_as_done_again() -> None:
    jobs = [
        gang("running", 0.0, 7200.0, 1),
        gang("large", 10.0, 50.0, 2),
        Job("backfilled", 20.0, 86400.0, 1, Shape(8), gang=True, training_job=True, restartable=True),
    ]
    conditions = Conditions()
    outcome = Replay(uniform_nodes(2, 8), jobs, conditions).run()
    found = replayed(outcome, conditions, days=1.0)
    assert (found.asks, found.redone) == (1, 0.0)
    assert found.asked_held_up == pytest.approx(8 * 309 / 3600)
    assert found.asked_unsaved == pytest.approx(8 * (7200 - 20 - 3600) / 3600)


@pytest.mark.slow
def test_last_line_is_the_report_and_the_same_for_any_number_of_processes() -> None:
    def run(processes: int) -> str:
        done = subprocess.run(
            [
                sys.executable, "-m", "bench.policies", "--models", "kalos", "--seeds", "1", "--loads", "85",
                "--days", "0.5", "--processes", str(processes),
            ],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout.splitlines()[-1]

    line = run(1)
    report = json.loads(line)
    assert report["bench"] == "policies"
    assert len(report["goals"]) == 5
    assert {"kalos_85_50_greedy_utilisation", "kalos_85_100_preemptible_asks_per_job"} <= report["figures"].keys()
    assert run(2) == line
