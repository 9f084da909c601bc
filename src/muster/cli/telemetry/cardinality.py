"""`muster telemetry cardinality`: which metrics, labels and targets grow, and their cost in a larger cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import click

from muster.cli.doctor.page import amount
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.names import finite
from muster.cli.output import note, output_option, paint, print_data, print_table, say
from muster.cli.telemetry.running import run, stages
from muster.cli.telemetry.server_options import ServerOptions, server_options

if TYPE_CHECKING:
    from muster.telemetry.cardinality.collect import Settings
    from muster.telemetry.cardinality.evidence import Evidence
    from muster.telemetry.cardinality.growth import Growth
    from muster.telemetry.cardinality.report import Report

_ANSWER_BYTES_MAX: Final = 16 << 20
_METRICS_MAX: Final = 500
_SHOWN_LABELS: Final = 10
_FACTOR_MAX: Final = 1000.0
_DAY_S: Final = 86400.0

FIXES: Final = {
    "aggregate-pairs": "It has series for pairs of nodes. Export a summary of each node's peers, or a few peers each.",
    "drop-labels": "Labels repeat others or change at each restart (uid, container_id, id): drop them at the scrape.",
    "fewer-buckets": "Each series is multiplied by its buckets: keep fewer of them, or use native histograms.",
    "drop-unused": "If `muster telemetry unused` lists it, drop it at the scrape.",
    "shard-target": "One target exports what grows, and its scrape becomes too slow: run several shards of it.",
    "limit-churn": "Many series are new in each hour: look for labels with IDs or times, and set sample_limit.",
}


@click.command("cardinality")
@server_options()
@click.option(
    "--times", type=click.FloatRange(1.0, _FACTOR_MAX), callback=finite, default=10.0, show_default=True,
    help="How many times as many nodes and pods.",
)  # fmt: skip
@click.option("--nodes", type=click.IntRange(1), help="Nodes of the cluster (found out by kube_node_info or others).")
@click.option("--pods", type=click.IntRange(1), help="Pods of the cluster (found out by kube_pod_info or others).")
@click.option(
    "--metrics", type=click.IntRange(1, _METRICS_MAX), default=20, show_default=True,
    help="Metrics to look at, those with most series first (10 at most before Prometheus 2.45).",
)  # fmt: skip
@click.option(
    "--most-series", type=click.IntRange(100), default=50_000, show_default=True,
    help="Series that a query may touch.",
)  # fmt: skip
@click.option(
    "--history-days", type=click.FloatRange(0, 366), callback=finite, default=7.0, show_default=True,
    help="Compare with earlier numbers of nodes and series; 0: do not.",
)  # fmt: skip
@click.option(
    "--time-limit", type=click.FloatRange(1, 3600), callback=finite, default=120.0, show_default=True,
    metavar="SECONDS", help="Time for all queries.",
)  # fmt: skip
@output_option("json", "yaml")
def command(
    server: ServerOptions,
    times: float,
    nodes: int | None,
    pods: int | None,
    metrics: int,
    most_series: int,
    history_days: float,
    time_limit: float,
    output: str,
) -> int:
    """Show what grows with nodes or pods, and what it costs at 10 times the size; worst first.

    It reads the server's statistics and counts series with bounded queries, one at a time. It works with Prometheus,
    Mimir and VictoriaMetrics; those without statistics of series show their targets only.

    Exit status: 0. 1 if a metric grows faster than the cluster, or if a target cannot be scraped in time then. Also 1
    without statistics of series, since the cost then is not known.
    """
    from muster.telemetry.cardinality.collect import Settings
    from muster.telemetry.cardinality.report import report

    if nodes and pods and pods > nodes * 1000:
        raise BadInput(f"{pods} pods do not fit on {nodes} nodes", "check --nodes and --pods")
    settings = Settings(metrics, most_series, nodes or 0, pods or 0, history_days * _DAY_S, time_limit)
    with stages("counting series", output) as stage:
        evidence = run(_collect(server, settings, stage))
    if not evidence.jobs and not evidence.metrics:
        raise CliError(
            "the server has neither targets nor series", "check the address and the tenant", ExitCode.NOT_FOUND
        )
    found = report(evidence, times)
    if output:
        from msgspec import to_builtins

        print_data(to_builtins(found), output)
    else:
        _print(found)
    if not found.projected:
        note(
            f"the cost at {times:g} times the size is not known, since the server shows no statistics of its series: "
            "ask Prometheus itself, not a guard or a proxy"
        )
    return ExitCode.FAILED if found.grows_faster or not found.projected else ExitCode.DONE


async def _collect(server: ServerOptions, settings: Settings, stage: Callable[[str], None]) -> Evidence:
    from muster.telemetry.cardinality.collect import collect

    async with server.client(max_bytes=_ANSWER_BYTES_MAX) as client:
        return await collect(client, settings, stage)


def _print(found: Report) -> None:
    then = f"AT {found.factor:g}X"
    now, later = found.now, found.then
    print_table(
        ["", "NOW", then],
        [
            [name, shown(of_now), shown(of_later) if found.projected else "?"]
            for name, of_now, of_later, shown in (
                ("series", now.series, later.series, _count),
                ("memory", now.memory_bytes, later.memory_bytes, _bytes),
                ("samples/s", now.samples_per_s, later.samples_per_s, _count),
                ("scraped/s", now.scrape_bytes_per_s, later.scrape_bytes_per_s, _bytes),
            )
        ],
    )
    if found.metrics:
        click.echo()
        print_table(
            ["METRIC", "JOB", "SERIES", then, "MEMORY", "SAMPLES/S", "SCRAPED/S", "GROWS WITH", "BECAUSE OF"],
            [
                [
                    row.name,
                    ",".join(row.jobs) or "-",
                    f"{row.now.series:,.0f}",
                    f"{row.then.series:,.0f}",
                    amount(row.then.memory_bytes, "bytes"),
                    f"{row.then.samples_per_s:,.0f}",
                    amount(row.then.scrape_bytes_per_s, "bytes"),
                    _grows(row.growth),
                    _because(row.growth),
                ]
                for row in found.metrics
            ],
            optional=("SCRAPED/S", "SAMPLES/S", "MEMORY", "BECAUSE OF"),
        )
    if found.labels:
        click.echo()
        print_table(
            ["LABEL", "VALUES", then, "GROWS WITH"],
            [
                [row.name, f"{row.values:,}", f"{row.values_then:,.0f}", _grows(row.growth)]
                for row in found.labels[:_SHOWN_LABELS]
            ],
        )
    if found.jobs:
        click.echo()
        print_table(
            ["JOB", "TARGETS", "GROWS WITH", "SAMPLES/S", then, "SCRAPE", then, "NEW/H"],
            [
                [
                    row.job.name,
                    f"{row.job.targets:,}",
                    _grows(row.growth),
                    f"{row.job.samples_per_s:,.0f}",
                    f"{row.samples_per_s_then:,.0f}",
                    f"{row.job.scrape_s:.2f} s",
                    f"{row.scrape_s_then:.2f} s",
                    f"{row.job.added_per_h:,.0f}",
                ]
                for row in found.jobs
            ],
        )
    _print_fixes(found)
    for each in found.evidence.notes:
        note(each)
    note(f"{found.evidence.requests} requests, {found.evidence.server_s:.1f} s")


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _bytes(size: float) -> str:
    return amount(size, "bytes")


def _print_fixes(found: Report) -> None:
    """Print each fix once, with the metrics and jobs that it helps."""
    names: dict[str, list[str]] = {name: [] for name in FIXES}
    for row in found.metrics:
        for fix in row.fixes:
            names[fix].append(row.name)
    for job in found.jobs:
        for fix in job.fixes:
            names[fix].append(f"job {job.job.name}")
    for name, of in names.items():
        if of:
            click.echo()
            shown = ", ".join(of[:5]) + (f" and {len(of) - 5} more" if len(of) > 5 else "")
            say(f"{shown}: {FIXES[name]}", head=paint("fix", "cyan", bold=True) + ": ", hang=2)


def _grows(growth: Growth) -> str:
    if not growth.power:
        return "-"
    return f"{growth.grows_with} squared" if growth.power > 1 else growth.grows_with


def _because(growth: Growth) -> str:
    if not growth.basis:
        return "-"
    return f"{growth.basis}: {', '.join(growth.labels)}" if growth.labels else growth.basis
