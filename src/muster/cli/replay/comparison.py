"""Reports of the same jobs under several policies, side by side as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from muster.cli.output import duration, print_table
from muster.cli.replay.summary import held_text, percent, print_source
from muster.sim.replay.report import QueueTime, Report

_TOTALS: tuple[tuple[str, Callable[[Report], str]], ...] = (
    ("started", lambda report: f"{report.started:,}"),
    ("done", lambda report: f"{report.done:,}"),
    ("utilisation", lambda report: percent(report.utilisation)),
    ("idle while a job waits", lambda report: percent(report.idle_while_waiting)),
    ("where a restartable job fits", lambda report: percent(report.idle_while_restartable_fits)),
    ("fragmentation", lambda report: percent(report.fragmentation)),
    ("preemptions", lambda report: f"{report.preemptions:,}"),
    ("of backfilled jobs", lambda report: f"{report.asked:,}"),
    ("P90 wait, all but heaviest user", lambda report: _time(report.other_users_p90_s)),
    ("GPU hours done again", lambda report: f"{report.gpu_hours.redone:,.0f}"),
    ("GPU hours held up", lambda report: f"{report.gpu_hours.stopped:,.0f}"),
    ("starts within their forecast", lambda report: held_text(report.forecasts)),
)


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)


def print_comparison(reports: Sequence[Report]) -> None:
    """Print a column for each policy: totals, and how long jobs of each size waited."""
    print_source(reports[0])
    click.echo(f"{reports[0].restartable:,} jobs are restartable\n")
    policies = [report.policy.upper() for report in reports]
    print_table(("TOTAL", *policies), [(name, *(text(report) for report in reports)) for name, text in _TOTALS])
    click.echo("\nWaits (P50 / P90 / P99) of jobs that started:")
    print_table(("GPUS", "JOBS", *policies), _by_size(reports, _waits))
    if any(report.started < report.jobs for report in reports):
        click.echo("\nNot started at the end:")
        print_table(("GPUS", "JOBS", *policies), _by_size(reports, lambda each: f"{each.waiting:,}"))


def _by_size(reports: Sequence[Report], text: Callable[[QueueTime], str]) -> list[tuple[str, ...]]:
    """Return a row for each size of jobs. The sizes are the same under every policy, unless jobs never arrived."""
    sizes = [{each.gpus_min: each for each in report.queue} for report in reports]
    first = {gpus: each for queue in sizes for gpus, each in queue.items()}
    return [
        (
            first[gpus].gpus_text,
            f"{first[gpus].jobs:,}",
            *(text(queue[gpus]) if gpus in queue else "-" for queue in sizes),
        )
        for gpus in sorted(first)
    ]


def _waits(each: QueueTime) -> str:
    times = (each.p50_s, each.p90_s, each.p99_s)
    return " / ".join(map(_time, times))
