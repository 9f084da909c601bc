"""`muster doctor`: examines the control plane and prints its findings."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from muster.cli.doctor.block import block_command, unblock_command
from muster.cli.doctor.etcdaccess import etcd_access
from muster.cli.doctor.page import print_report
from muster.cli.doctor.price import price_command
from muster.cli.doctor.record import record_command
from muster.cli.errors import BadInput, ExitCode
from muster.cli.names import finite
from muster.cli.output import output_option, print_data
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.cli.target import Cluster
    from muster.doctor.examine import Report
    from muster.doctor.rule import Options

_WINDOW_S = 10.0
_FILE = click.Path(path_type=Path, dir_okay=False)
_WINDOW_LEAST_S, _WINDOW_MOST_S = 1.0, 600.0


@click.group("doctor", invoke_without_command=True)
@click.option("--at", type=click.IntRange(min=1), metavar="NODES", help="Planned number of nodes (10 times today's).")
@click.option(
    "--window",
    type=click.FloatRange(_WINDOW_LEAST_S, _WINDOW_MOST_S),
    callback=finite,
    default=_WINDOW_S,
    show_default=True,
    metavar="SECONDS",
    help="How long to watch the API server.",
)
@click.option(
    "--audit-log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Log that shows who sends which requests: the API server's audit log, the read cache's or the recorder's log. "
    "Repeatable.",
)
@click.option(
    "--etcd-metrics",
    "etcd_urls",
    multiple=True,
    metavar="URL",
    help="Metrics of an etcd member, as in https://10.0.0.1:2379/metrics. Repeatable.",
)
@click.option("--etcd-ca", type=_FILE, help="Authority of etcd's certificate.")
@click.option("--etcd-cert", type=_FILE, help="Client certificate for etcd.")
@click.option("--etcd-key", type=_FILE, help="Key of the client certificate for etcd.")
@output_option("json", "yaml")
@cluster_options()
@click.pass_context
def command(
    context: click.Context,
    at: int | None,
    window: float,
    logs: tuple[Path, ...],
    etcd_urls: tuple[str, ...],
    etcd_ca: Path | None,
    etcd_cert: Path | None,
    etcd_key: Path | None,
    output: str,
    target: Target,
) -> int:
    """Examine the control plane: who harms it, what that costs today and with NODES nodes, and the fix.

    Exit status: 0 without an error among the findings, 1 with one, 3 without a cluster.
    """
    if context.invoked_subcommand is not None:
        etcd = (etcd_urls, etcd_ca, etcd_cert, etcd_key)
        if at is not None or logs or any(etcd) or output or target != Target() or window != _WINDOW_S:
            raise BadInput(
                "options before a subcommand have no effect", f"write them after '{context.invoked_subcommand}'"
            )
        return ExitCode.DONE
    from muster.doctor.rule import Options

    access = etcd_access(etcd_urls, etcd_ca, etcd_cert, etcd_key)
    options = Options(planned=at or 0, window_s=window, audit_log=logs, etcd=access)
    cluster = resolve(target)
    with _progress(cluster, shown=not output) as progress:
        report = asyncio.run(_examine(cluster, options, progress))
    if output:
        from msgspec import to_builtins

        print_data(to_builtins(report), output)
    else:
        print_report(report)
    return ExitCode.FAILED if report.failed else ExitCode.DONE


@contextlib.contextmanager
def _progress(cluster: Cluster, *, shown: bool) -> Iterator[Callable[[str], None]]:
    """Show the current step. Output for scripts has none."""
    if not shown:
        yield lambda stage: None
        return
    from muster.cli.local.up import waiting

    with waiting(f"examining {cluster.description}") as progress:
        yield progress


async def _examine(cluster: Cluster, options: Options, progress: Callable[[str], None]) -> Report:
    from muster.api.reader import USER_AGENT, Reader
    from muster.doctor.collect import collect
    from muster.doctor.examine import examine
    from muster.doctor.registry import COLLECTORS, FAMILIES, RULES

    async with cluster.client(USER_AGENT) as client:
        reader = Reader(client)
        evidence = await collect(reader, options, FAMILIES, COLLECTORS, progress)
    return examine(evidence, RULES, reader.cost)


for each in (price_command, record_command, block_command, unblock_command):
    command.add_command(each)
