"""Figures of one replay under one policy, and of several replays with different seeds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from muster.sim.replay.replay import DETECT_S, Conditions, Outcome
from muster.sim.replay.report import HOUR_S, INTERVALS, percentile
from muster.sim.replay.run import Run

SIZES = {"up_to_1_node": (0, 1), "2_to_7_nodes": (2, 7), "8_to_31_nodes": (8, 31), "32_nodes_and_more": (32, 1 << 30)}
"""Sizes of jobs by their nodes, from and to."""
SHORT_S = 10.0
"""Bounded slowdown: jobs that run shorter count as if they ran this long (Feitelson, Metrics for Parallel Job
Scheduling and Their Convergence, 2001)."""


class Waited(msgspec.Struct, frozen=True):
    """A job: its time until its first start, and its bounded slowdown from submission to end."""

    nodes: int
    restartable: bool
    wait_s: float
    slowdown: float


class Replayed(msgspec.Struct, frozen=True):
    """One replay. Every job has started and ended.

    Shares of GPUs are means over the days in which jobs arrive. GPU hours are of the whole replay.

    Attributes:
        idle_waiting: share of GPUs that are idle while a job waits.
        idle_fitting: share of GPUs that are idle while a waiting restartable job would fit on them.
        used: GPU hours that were allocated to jobs.
        redone: GPU hours of work that was lost in failures and done again.
        asked_held_up: GPU hours of restarts of jobs that were asked to leave reserved nodes.
        asked_lost: GPU hours of work that jobs without checkpoints lost when they were asked, and did again.
        asked_unsaved: GPU hours of work that such a job saved when it was asked. A job that cannot save when it is
            asked does it again.
        asks: how often jobs were asked to leave.
        waits: of all jobs.
    """

    utilisation: float
    idle_waiting: float
    idle_fitting: float
    used: float
    redone: float
    asked_held_up: float
    asked_lost: float
    asked_unsaved: float
    asks: int
    waits: Sequence[Waited]


def replayed(outcome: Outcome, conditions: Conditions, days: float) -> Replayed:
    """Return the figures of a replay that ran until its last job had ended."""
    moments = outcome.series.means(min(days * 86400, outcome.end_s), INTERVALS)

    def share(field: str) -> float:
        return sum(each[field] for each in moments) / len(moments) / outcome.gpus

    runs = outcome.runs
    (whole,) = outcome.series.means(outcome.end_s, 1)
    restart_s = DETECT_S + conditions.restart_minutes * 60
    return Replayed(
        utilisation=share("busy"),
        idle_waiting=share("idle_while_waiting"),
        idle_fitting=share("idle_while_restartable_fits"),
        used=whole["busy"] * outcome.end_s / HOUR_S,
        redone=_gpu_hours((run, run.redone_s) for run in runs),
        asked_held_up=_gpu_hours((run, run.asked * restart_s) for run in runs),
        asked_lost=_gpu_hours((run, run.lost_asked_s) for run in runs),
        asked_unsaved=_gpu_hours((run, run.unsaved_s) for run in runs),
        asks=outcome.asked,
        waits=[_waited(run) for run in runs],
    )


def together(parts: Sequence[Replayed]) -> Replayed:
    """Return the mean shares, and the sums of all else."""

    def mean(field: str) -> float:
        return total(field) / len(parts)

    def total(field: str) -> float:
        return float(sum(getattr(each, field) for each in parts))

    return Replayed(
        utilisation=mean("utilisation"),
        idle_waiting=mean("idle_waiting"),
        idle_fitting=mean("idle_fitting"),
        used=total("used"),
        redone=total("redone"),
        asked_held_up=total("asked_held_up"),
        asked_lost=total("asked_lost"),
        asked_unsaved=total("asked_unsaved"),
        asks=int(total("asks")),
        waits=[waited for each in parts for waited in each.waits],
    )


def figures_of(found: Replayed) -> dict[str, float]:
    """Return the figures as plain numbers, the unit last in the name."""
    figures = {
        "utilisation": found.utilisation,
        "idle_while_a_job_waits": found.idle_waiting,
        "idle_while_a_restartable_job_fits": found.idle_fitting,
        "done_again": found.redone / found.used,
        "held_up_by_backfill": found.asked_held_up / found.used,
        "done_again_by_backfill": (found.asked_held_up + found.asked_lost) / found.used,
        "done_again_by_backfill_if_not_saved": found.asked_unsaved / found.used,
        "asks_per_job": found.asks / len(found.waits),
    }
    for name in SIZES:
        jobs = of_size(found, name)
        figures[f"jobs_{name}"] = len(jobs)
        if jobs:
            waits = sorted(each.wait_s for each in jobs)
            for percent in (50, 90, 99):
                figures[f"wait_p{percent}_{name}_s"] = percentile(waits, percent) or 0.0
            restartable = sorted(each.wait_s for each in jobs if each.restartable)
            if 0 < len(restartable) < len(jobs):
                figures[f"wait_p90_{name}_restartable_s"] = percentile(restartable, 90) or 0.0
            figures[f"bounded_slowdown_mean_{name}"] = sum(each.slowdown for each in jobs) / len(jobs)
    return {name: round(value, 6) for name, value in figures.items()}


def of_size(found: Replayed, name: str) -> list[Waited]:
    """Return the jobs of a size."""
    least, most = SIZES[name]
    return [each for each in found.waits if least <= each.nodes <= most]


def _waited(run: Run) -> Waited:
    assert run.started_s is not None
    assert run.ended_s is not None
    turnaround_s = run.ended_s - run.job.submit_s
    slowdown = max(1.0, turnaround_s / max(run.job.run_s, SHORT_S))
    return Waited(run.job.members, run.job.restartable, run.started_s - run.job.submit_s, slowdown)


def _gpu_hours(parts: Iterable[tuple[Run, float]]) -> float:
    return sum(run.job.gpus * seconds for run, seconds in parts) / HOUR_S
