"""`muster network uplink`: how the uplink's budget is shared now, who waits, and why."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Final

import click

from muster.api.visible import visible
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.names import not_empty
from muster.cli.network.agents import Agent, agents_at, find_controllers, read_pages
from muster.cli.network.rates import rate
from muster.cli.output import note, output_option, print_data, print_table, say
from muster.cli.table_group import system_namespace
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.network.uplink.page import SubjectRow, UplinkPage

HEADERS: Final = (
    "JOB",
    "NAMESPACE",
    "POD",
    "TEAM",
    "PRIORITY",
    "NODE",
    "USES IN",
    "WANTS IN",
    "MAY IN",
    "USES OUT",
    "WANTS OUT",
    "MAY OUT",
    "WAITS FOR",
)
OPTIONAL: Final = ("PRIORITY", "NODE", "POD", "WANTS OUT", "WANTS IN", "NAMESPACE", "TEAM")
TEAM_HEADERS: Final = ("TEAM", "WEIGHT", "WANTS IN", "MAY IN", "WANTS OUT", "MAY OUT")
_PAGE: Final = "uplink"
_WAITS: Final = {
    "Priority": "higher priority",
    "TeamShare": "share of team",
    "Room": "other nodes",
    "Warming": "new leader",
}
"""By reason, what a subject waits for."""
_NAMES_MAX: Final = 10


@click.command("uplink")
@click.option("--team", default="", callback=not_empty, metavar="NAME", help="Only subjects of this team.")
@click.option("--waiting", is_flag=True, help="Only subjects that get less than they want.")
@click.option("--limit", default=40, show_default=True, type=click.IntRange(min=0), metavar="N", help="Rows; 0: all.")
@click.option(
    "--url", default="", callback=not_empty, metavar="URL", help="Ask the controller at this address of its metrics."
)
@system_namespace
@output_option("json", "yaml")
@cluster_options()
def command(team: str, waiting: bool, limit: int, url: str, system_namespace: str, output: str, target: Target) -> int:
    """Show how the uplink's budget is shared: what each subject uses, wants and may use, and what it waits for.

    The leader of the controller answers. Exit status 1: some subjects do not respond to their limits.
    """
    return asyncio.run(_uplink(team, waiting, limit, url, system_namespace, output, target))


async def _uplink(team: str, waiting: bool, limit: int, url: str, namespace: str, output: str, target: Target) -> int:
    from msgspec import to_builtins
    from msgspec.structs import replace

    async with _controllers(url, namespace, target) as controllers:
        page = await _page(controllers)
    page = replace(page, subjects=tuple(each for each in page.subjects if _is_wanted(each, team, waiting)))
    if output:
        print_data(to_builtins(page), output)
    else:
        _print(page, limit)
    return ExitCode.FAILED if any(any(each.unresponsive) for each in page.subjects) else ExitCode.DONE


def _is_wanted(row: SubjectRow, team: str, waiting: bool) -> bool:
    return (not team or row.team == team) and (not waiting or any(row.waits))


@contextlib.asynccontextmanager
async def _controllers(url: str, namespace: str, target: Target) -> AsyncIterator[list[Agent]]:
    if url:
        yield agents_at([url])
        return
    cluster = resolve(target)
    if cluster.embedded is not None:
        raise CliError(
            "the controller of the embedded cluster shares no uplink: its pods have no network of their own",
            "choose another cluster with --kubeconfig or --context, or name a controller with --url (docs/network.md)",
            ExitCode.NOT_FOUND,
        )
    async with cluster.client() as client:
        yield await find_controllers(client, namespace)


async def _page(controllers: list[Agent]) -> UplinkPage:
    """Return the leader's page. Raises CliError if no replica has one."""
    from muster.network.uplink.page import UplinkPage

    answers = await read_pages(controllers, _PAGE)
    for answer in answers:
        if answer.problem:
            continue
        page, problem = answer.decoded(UplinkPage, "the page of the uplink's budget")
        if page is None:
            raise BadInput(f"{answer.name}: {problem}")
        return page
    said = "; ".join(f"{answer.name}: {answer.problem}" for answer in answers)
    raise CliError(
        f"no controller shares the uplink's budget ({said})",
        "the operator enables it with network.config.uplink in Muster's chart (docs/network-uplink.md); a new leader "
        "answers after a few seconds",
        ExitCode.NOT_FOUND,
    )


def _print(page: UplinkPage, limit: int) -> None:
    say(_budget(page))
    for line in _notes(page):
        note(line)
    if page.teams:
        rows = [[visible(each.team) or "-", str(each.weight), *_pairs(each.wants, each.rate)] for each in page.teams]
        print_table(TEAM_HEADERS, rows)
    shown = page.subjects[:limit] if limit else page.subjects
    if shown:
        click.echo()
        print_table(HEADERS, [_row(each) for each in shown], OPTIONAL)
    more = len(page.subjects) - len(shown) + page.subjects_left_out
    if more:
        note(f"{more} more subjects; --limit 0 shows at most {len(page.subjects)}")
    flows = [each for each in page.subjects if any(each.unresponsive)]
    for each in flows[:_NAMES_MAX]:
        excess = " and ".join(
            f"{rate(value)} {way}" for way, value in zip(("in", "out"), each.unresponsive, strict=True) if value
        )
        note(f"{_name(each)} on {each.node} uses {excess} beyond its limit: its flows do not respond to losses")
    if len(flows) > _NAMES_MAX:
        note(f"{len(flows) - _NAMES_MAX} more do not respond to their limits; -o json names them")


def _budget(page: UplinkPage) -> str:
    ways = (
        f"{way} {rate(used)} of {rate(budget)}"
        for way, used, budget in zip(("in", "out"), page.used, page.budget, strict=True)
    )
    return f"uplink: {', '.join(ways)}; {page.connected} of {page.nodes} nodes are connected"


def _notes(page: UplinkPage) -> Iterator[str]:
    if page.dry_run:
        yield "dry run: nothing is limited"
    if page.warming:
        yield "the leader is new: nodes keep their limits until it has heard all of them"
    if page.silent:
        names = ", ".join(page.silent[:_NAMES_MAX])
        more = page.nodes - page.connected - min(_NAMES_MAX, len(page.silent))
        yield (
            f"nodes without a connection: {names}{f' and {more} more' if more > 0 else ''}; "
            f"{rate(page.away.in_bps)} in and {rate(page.away.out_bps)} out are kept for them"
        )


def _row(row: SubjectRow) -> list[str]:
    return [
        visible(row.job) or "-",
        visible(row.namespace) or "-",
        visible(row.pod or row.subject),
        visible(row.team) or "-",
        str(row.priority),
        row.node,
        rate(row.used.in_bps),
        rate(row.wants.in_bps),
        rate(row.rate.in_bps),
        rate(row.used.out_bps),
        rate(row.wants.out_bps),
        rate(row.rate.out_bps),
        _waits(row),
    ]


def _waits(row: SubjectRow) -> str:
    found = [f"{way}: {_WAITS.get(why, why)}" for way, why in zip(("in", "out"), row.waits, strict=True) if why]
    return ", ".join(found) or "-"


def _name(row: SubjectRow) -> str:
    return visible(f"{row.namespace}/{row.pod}" if row.pod else row.subject)


def _pairs(wants: tuple[int, int], may: tuple[int, int]) -> list[str]:
    return [rate(wants[0]), rate(may[0]), rate(wants[1]), rate(may[1])]
