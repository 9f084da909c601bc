"""`muster network top`: which jobs use the uplink now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from muster.api.visible import visible
from muster.cli.data.sizes import size
from muster.cli.errors import BadInput, ExitCode
from muster.cli.names import NODE_NAMES
from muster.cli.network.agents import Agent, Answer, open_agents, read_pages
from muster.cli.network.rates import rate
from muster.cli.output import console, interactive, note, output_option, print_data, print_table
from muster.cli.table_group import system_namespace
from muster.cli.target import Target, cluster_options

if TYPE_CHECKING:
    from rich.console import RenderableType

    from muster.network.traffic.report import TrafficReport
    from muster.network.traffic.usage import Usage

HEADERS: Final = (
    "JOB",
    "NAMESPACE",
    "TEAM",
    "NODES",
    "IN",
    "OUT",
    "INNER IN",
    "INNER OUT",
    "TOTAL IN",
    "TOTAL OUT",
)
OPTIONAL: Final = ("TOTAL OUT", "TOTAL IN", "NODES", "INNER OUT", "INNER IN", "TEAM")
_PAGE: Final = "traffic"
_AGAIN_S: Final = 2.0
_DIFFERENCE_MAX: Final = 0.01
_NOISE_BPS: Final = 100_000
"""A smaller difference is not shown: ARP is not IP, and the two are not read at the same moment."""


@click.command("top")
@click.option("--node", "nodes", multiple=True, metavar="NAME", callback=NODE_NAMES, help="Only this node; repeatable.")
@click.option("--url", "urls", multiple=True, metavar="URL", help="Ask the agent at this address; repeatable.")
@click.option("--once", is_flag=True, help="Print once, also on a terminal.")
@click.option("--limit", default=0, type=click.IntRange(min=0), metavar="N", help="Only the N largest users (all).")
@system_namespace
@output_option("json", "yaml")
@cluster_options()
def command(
    nodes: tuple[str, ...],
    urls: tuple[str, ...],
    once: bool,
    limit: int,
    system_namespace: str,
    output: str,
    target: Target,
) -> int:
    """Show which jobs use the uplink now, and what they moved. On a terminal it is drawn again until Ctrl-C.

    IN and OUT are everything that is not internal, as the pods see it; INNER is the rest. The last lines compare all
    rows, internal ones too, with the network cards. Exit status 1: a node did not answer.
    """
    if urls and nodes:
        raise BadInput("--url and --node exclude each other", "leave out one of them")
    live = interactive() and not once and not output
    return asyncio.run(_top(nodes, urls, live, limit, system_namespace, output, target))


async def _top(
    nodes: tuple[str, ...],
    urls: tuple[str, ...],
    live: bool,
    limit: int,
    namespace: str,
    output: str,
    target: Target,
) -> int:
    async with open_agents(urls, nodes, namespace, target) as agents:
        if live:
            await _watch(agents, limit)
        answers = await read_pages(agents, _PAGE)
    reports, problems = _reports(answers)
    found = _usage(reports)
    if output:
        print_data(_data(found, reports, problems), output)
    else:
        if reports:
            _print(found, limit)
        for name, problem in problems:
            note(f"{name}: {problem}")
    return ExitCode.DONE if len(reports) == len(answers) else ExitCode.FAILED


async def _watch(agents: Sequence[Agent], limit: int) -> None:
    """Draw until the user interrupts."""
    from rich.live import Live

    with Live(console=console(), auto_refresh=False, screen=False, transient=True) as drawing:
        while True:
            reports, problems = _reports(await read_pages(agents, _PAGE))
            drawing.update(_drawn(_usage(reports), problems, limit, len(agents)), refresh=True)
            await asyncio.sleep(_AGAIN_S)


def _reports(answers: Sequence[Answer]) -> tuple[list[TrafficReport], list[tuple[str, str]]]:
    """Return the reports, and (name, problem) of agents that gave none or an incomplete one."""
    import msgspec

    from muster.network.traffic.report import TrafficReport
    from muster.network.traffic.usage import STALE_S

    reports: list[TrafficReport] = []
    problems: list[tuple[str, str]] = []
    seen: dict[tuple[str, str], str] = {}
    for answer in answers:
        report, problem = answer.decoded(TrafficReport, "a report of traffic")
        if report is None:
            problems.append((answer.name, problem))
            continue
        other = seen.setdefault((report.node, report.ledger_id), answer.name)
        if report.ledger_id and other != answer.name:
            problems.append((answer.name, f"it is the agent of {other} too, and counts once"))
            continue
        if report.age_s > STALE_S:
            problems.append((answer.name, f"its counters are {report.age_s:.0f} s old"))
            report = msgspec.structs.replace(report, interval_s=0.0)
        reports.append(report)
        problems += [(answer.name, each) for each in report.problems]
    return reports, problems


def _usage(reports: Sequence[TrafficReport]) -> Usage:
    from muster.network.traffic.usage import usage

    return usage(reports)


def _rows(found: Usage, limit: int) -> list[tuple[str, ...]]:
    jobs = found.jobs[:limit] if limit else found.jobs
    return [
        (
            each.job or "-",
            each.namespace or "-",
            each.team or "-",
            str(each.nodes),
            rate(each.in_bps),
            rate(each.out_bps),
            rate(each.internal_in_bps),
            rate(each.internal_out_bps),
            size(each.in_bytes),
            size(each.out_bytes),
        )
        for each in jobs
    ]


def _sums(found: Usage) -> list[str]:
    lines = []
    for direction, check in found.checks.items():
        text = (
            f"{direction:>3}: all rows {rate(check.rows_bps)} + headers {rate(check.overhead_bps)}, "
            f"network cards {rate(check.nic_bps)}"
        )
        missing_bps = abs(check.rows_bps + check.overhead_bps - check.nic_bps)
        off = abs(check.difference) > _DIFFERENCE_MAX and missing_bps > _NOISE_BPS
        lines.append(f"{text} ({check.difference:+.1%})" if off else text)
    return lines


def _print(found: Usage, limit: int) -> None:
    print_table(HEADERS, _rows(found, limit), OPTIONAL)
    click.echo()
    for line in _sums(found):
        click.echo(line)


def _drawn(found: Usage, problems: Sequence[tuple[str, str]], limit: int, nodes: int) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    room = max(1, console().size.height - 6 - min(3, len(problems)))
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for header in HEADERS[:6]:
        table.add_column(header, justify="right" if header in ("IN", "OUT", "NODES") else "left", no_wrap=True)
    for row in _rows(found, min(limit or room, room)):
        table.add_row(*(visible(cell) for cell in row[:6]))
    hidden = len(found.jobs) - table.row_count
    last = [f"and {hidden} more" if hidden > 0 else "", *_sums(found)]
    last += [visible(f"{name}: {problem}") for name, problem in problems[:3]]
    last.append(f"{len(problems)} problems on {nodes} nodes" if len(problems) > 3 else "")
    return Group(table, *(Text(line) for line in last if line))


def _data(found: Usage, reports: Sequence[TrafficReport], problems: Sequence[tuple[str, str]]) -> dict[str, Any]:
    return {
        "jobs": [each._asdict() for each in found.jobs],
        "check": {
            direction: {**check._asdict(), "difference": round(check.difference, 4)}
            for direction, check in found.checks.items()
        },
        "nodes": [
            {
                "node": each.node,
                "ledger": each.ledger_id,
                "taken_s": each.taken_s,
                "interval_s": each.interval_s,
                "interfaces": list(each.interfaces),
                "backend": each.backend,
            }
            for each in reports
        ],
        "problems": [{"node": name, "problem": problem} for name, problem in problems],
    }
