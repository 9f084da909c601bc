"""`muster network doctor`: what endangers the cluster's network."""

from __future__ import annotations

import asyncio
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from muster.cli.doctor.page import amount, print_finding
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.names import finite
from muster.cli.network.agents import find_agents, read_pages
from muster.cli.output import output_option, paint, print_data, say
from muster.cli.table_group import system_namespace
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.api.finding import Unseen
    from muster.cli.target import Cluster
    from muster.kube.client import Client
    from muster.network.checks.page import ChecksPage
    from muster.network.checks.report import Report
    from muster.network.plan.request import PodNetwork

_WINDOW_S = 5.0
_POD_NETWORK: Final = "overlay"
_FIREWALLS: Final = "firewalls of the nodes"
_SHOWN: Final = 5


@click.command("doctor")
@click.option("--at", type=click.IntRange(min=1), metavar="NODES", help="Planned number of nodes (today's).")
@click.option(
    "--dns-metrics",
    "urls",
    multiple=True,
    metavar="URL",
    help="Metrics of a DNS server, as in http://10.0.0.1:9153/metrics (through the API server). Repeatable.",
)
@click.option("--here", is_flag=True, help="Examine this machine instead, without a cluster.")
@click.option(
    "--window",
    type=click.FloatRange(0.1, 600.0),
    callback=finite,
    default=_WINDOW_S,
    show_default=True,
    metavar="SECONDS",
    help="With --here: how long counters are watched.",
)
@click.option(
    "--proc", type=click.Path(path_type=Path, file_okay=False), default=Path("/proc"), help="With --here: its /proc."
)
@click.option(
    "--pod-network",
    type=click.Choice(["native", "routes", "overlay"]),
    default=_POD_NETWORK,
    show_default=True,
    help="With --here and --at: how packets of pods travel, as in the plan.",
)
@system_namespace
@output_option("json", "yaml")
@cluster_options()
def command(
    at: int | None,
    urls: tuple[str, ...],
    here: bool,
    window: float,
    proc: Path,
    pod_network: PodNetwork,
    system_namespace: str,
    output: str,
    target: Target,
) -> int:
    """Find problems of DNS and of the nodes' networks, each with its fix.

    The agents of the nodes report conntrack, neighbour tables, MTU, ports and filters (docs/network-doctor.md).

    Exit status: 0 without an error among the findings, 1 with one or if nothing could be examined, 3 without a cluster.
    """
    for url in urls:
        if not url.startswith(("http://", "https://")):
            raise BadInput(f"--dns-metrics {url!r} is not an address", "write it as http://HOST:9153/metrics")
    if here and urls:
        raise BadInput("--here examines no cluster, so --dns-metrics has no effect", "leave out one of them")
    if not here and (window != _WINDOW_S or proc != Path("/proc")):
        raise BadInput("--window and --proc have an effect only with --here", "add --here, or leave them out")
    if pod_network != _POD_NETWORK and not (here and at):
        raise BadInput("--pod-network has an effect only with --here and --at", "add both, or leave it out")
    if here:
        report = _here(at or 0, pod_network, window, proc)
    else:
        report = asyncio.run(_cluster(resolve(target), at or 0, urls, system_namespace))
    if output:
        from msgspec import to_builtins

        print_data(to_builtins(report), output)
    else:
        _print(report)
    return ExitCode.FAILED if report.failed else ExitCode.DONE


def _here(planned: int, pod_network: PodNetwork, window_s: float, proc: Path) -> Report:
    from muster.network.checks.node.doctor import examine_machine
    from muster.network.checks.node.evidence import Settings

    settings = Settings(planned_nodes=planned, pod_network=pod_network)
    if not (proc / "sys/net/ipv4").is_dir() or not (proc / "net").is_dir():
        raise BadInput(f"--proc {proc} is not the /proc of a machine", "mount the node's /proc, and name its folder")
    try:
        return examine_machine(platform.node(), proc, settings, window_s)
    except OSError as error:
        raise CliError(f"the network of this machine cannot be read: {error}") from error


async def _cluster(cluster: Cluster, planned: int, urls: tuple[str, ...], namespace: str) -> Report:
    from msgspec.structs import replace

    from muster.network.checks.cluster.doctor import USER_AGENT, examine_cluster, reach

    async with cluster.client(USER_AGENT) as client:
        await reach(client)
        pages, unseen = await _pages(client, namespace)
        report = await examine_cluster(client, planned, urls, pages)
    return replace(report, unseen=(*report.unseen, *unseen))


async def _pages(client: Client, namespace: str) -> tuple[list[ChecksPage], list[Unseen]]:
    """Read what the network agents found about firewalls. A cluster without these agents is examined without them."""
    from muster.api.finding import Unseen
    from muster.kube.errors import ApiError
    from muster.network.checks.page import NAME, ChecksPage

    try:
        answers = await read_pages(await find_agents(client, namespace, ()), NAME)
    except (CliError, ApiError) as error:
        return [], [Unseen(_FIREWALLS, str(error))]
    pages, unseen = [], []
    for answer in answers:
        page, problem = answer.decoded(ChecksPage, "a page of checks")
        if page is None or page.unread:
            unseen.append(Unseen(_FIREWALLS, f"{answer.name}: {page.unread if page else problem}"))
        if page is not None:
            pages.append(page)
    return pages, _first(unseen)


def _first(unseen: list[Unseen]) -> list[Unseen]:
    """Return a few, because thousands of nodes may have the same problem."""
    from muster.api.finding import Unseen

    left = len(unseen) - _SHOWN
    return [*unseen[:_SHOWN], *([Unseen(_FIREWALLS, f"{left} more nodes")] if left > 0 else [])]


def _print(report: Report) -> None:
    for finding in report.findings:
        print_finding(finding, report.planned_nodes or report.nodes)
    if not report.examined:
        say("Nothing could be examined.", head=paint("UNKNOWN ", "yellow", bold=True))
    elif not report.findings and report.unseen:
        say(f"No finding about {', '.join(report.examined)}.", head=paint("PARTIAL ", "yellow", bold=True))
    elif not report.findings:
        say("No finding.", head=paint("OK ", "green", bold=True))
    if report.unseen:
        click.echo(paint("Not examined", bold=True))
        for each in report.unseen:
            right = f"; it needs the right: {each.right}" if each.right else ""
            say(f"{each.what}: {each.why}{right}", head="  - ")
    cost = report.own_cost
    if cost.requests:
        say(
            f"{report.checked_nodes} of {report.nodes} nodes report about their network; "
            f"the doctor sent {cost.requests} requests and read {amount(cost.bytes, 'bytes')}."
        )
