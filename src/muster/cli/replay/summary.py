"""A replay's report as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from muster.cli.output import duration, print_table
from muster.sim.replay.report import Forecasts, Moment, QueueTime, Report

ROWS_MAX = 15
"""Most rows of the table over time, so that it fits on a screen. `-o json` has all."""
_QUEUE_HEADERS = ("GPUS", "JOBS", "WAIT P50", "P90", "P99", "NOT STARTED", "INTERRUPTED", "MTBF")
_TIME_HEADERS = ("FROM DAY", "IN USE", "HELD UP", "FAILED NODES", "IDLE", "IDLE WHILE A JOB WAITS", "JOBS WAITING")


def print_source(report: Report) -> None:
    """Print what was replayed, on which nodes."""
    click.echo(
        f"{report.source}: {report.jobs:,} jobs ({report.gangs:,} gangs, {report.pods:,} pods), "
        f"{report.nodes:,} nodes with {report.gpus:,} GPUs, {report.days:.4g} days, seed {report.seed}"
    )
    if report.left_out:
        click.echo(f"Left out: {left_out_text(report.left_out)}")


def print_report(report: Report) -> None:
    """Print the replayed jobs, how long jobs waited, how full the cluster was over time, and totals."""
    print_source(report)
    waiting = report.jobs - report.started
    click.echo(f"Started {report.started:,}, done {report.done:,}, not started at the end {waiting:,}\n")
    print_table(_QUEUE_HEADERS, [_queue_row(each) for each in report.queue])
    click.echo()
    step = -(-len(report.over_time) // ROWS_MAX)
    groups = [report.over_time[at : at + step] for at in range(0, len(report.over_time), step)]
    print_table(_TIME_HEADERS, [_time_row(group) for group in groups])
    click.echo()
    print_table(("TOTAL", "", ""), _totals(report))


def left_out_text(left_out: Mapping[str, int]) -> str:
    """Describe which jobs were left out."""
    return "; ".join(f"{count:,} {reason}" for reason, count in left_out.items())


def _queue_row(each: QueueTime) -> tuple[str, ...]:
    return (
        each.gpus_text,
        f"{each.jobs:,}",
        *("-" if value is None else duration(value) for value in (each.p50_s, each.p90_s, each.p99_s)),
        f"{each.waiting:,}",
        f"{each.interruptions:,}",
        f"{each.mtbf_hours:,.1f} h" if each.mtbf_hours is not None else "-",
    )


def _time_row(group: Sequence[Moment]) -> tuple[str, ...]:
    fields = ("utilisation", "stopped", "down", "idle", "idle_while_waiting")
    return (
        f"{group[0].hour / 24:.1f}",
        *(percent(sum(getattr(each, field) for each in group) / len(group)) for field in fields),
        f"{sum(each.waiting_jobs for each in group) / len(group):,.1f}",
    )


def _totals(report: Report) -> list[tuple[str, str, str]]:
    hours = report.gpu_hours
    lost = (hours.redone + hours.stopped) / hours.used if hours.used else 0.0
    forecasts, others = report.forecasts, report.other_users_p90_s
    known = forecasts.made / forecasts.waited if forecasts.waited else 0.0
    length = f", {forecasts.mean_hours:,.1f} h long" if forecasts.mean_hours is not None else ""
    return [
        ("utilisation", percent(report.utilisation), f"{hours.used:,.0f} of {hours.capacity:,.0f} GPU hours"),
        ("fragmentation", percent(report.fragmentation), "of idle GPUs are on nodes partly in use"),
        ("idle while a job waits", percent(report.idle_while_waiting), "of all GPUs"),
        (
            "where a restartable job fits",
            percent(report.idle_while_restartable_fits),
            f"of all GPUs; {report.restartable:,} jobs are restartable",
        ),
        (
            "lost to failures",
            percent(lost),
            f"of the GPU hours in use: {hours.redone:,.0f} done again, {hours.stopped:,.0f} held up",
        ),
        ("node failures", f"{report.node_failures:,}", f"{report.interruptions:,} interruptions of jobs"),
        (
            "preemptions",
            f"{report.preemptions:,}",
            f"{report.asked:,} of backfilled jobs; {report.released:,} gangs released half-bound",
        ),
        (
            "order",
            report.order,
            "" if others is None else f"P90 wait of all users but the heaviest: {duration(others)}",
        ),
        (
            "forecasts of starts",
            held_text(forecasts),
            f"held, of {forecasts.made:,}{length}, made for {percent(known)} of {forecasts.waited:,} jobs that waited",
        ),
    ]


def held_text(forecasts: Forecasts) -> str:
    """Return how many of the forecasts held."""
    return percent(forecasts.held / forecasts.made) if forecasts.made else "-"


def percent(share: float) -> str:
    """Return a share as text, such as 12.3%."""
    return f"{100 * share:.1f}%"
