"""`muster network leaks`: addresses that nothing uses, and nodes whose store, runtime, kernel and provider differ."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from muster.cli.errors import BadInput, ExitCode
from muster.cli.names import NODE_NAMES
from muster.cli.network.agents import Answer, open_agents, read_pages
from muster.cli.output import duration, note, output_option, print_data, print_table
from muster.cli.table_group import system_namespace
from muster.cli.target import Target, cluster_options

if TYPE_CHECKING:
    from muster.network.addresses.page import AddressesPage

HEADERS: Final = ("NODE", "PROBLEM", "ADDRESS", "POD", "SEEN", "CONTAINER", "MESSAGE")
OPTIONAL: Final = ("SEEN", "CONTAINER")
_PAGE: Final = "addresses"
_ID_CHARS: Final = 13


@click.command("leaks")
@click.option("--node", "nodes", multiple=True, metavar="NAME", callback=NODE_NAMES, help="Only this node; repeatable.")
@click.option("--url", "urls", multiple=True, metavar="URL", help="Ask the agent at this address; repeatable.")
@system_namespace
@output_option("json", "yaml")
@cluster_options()
def command(nodes: tuple[str, ...], urls: tuple[str, ...], system_namespace: str, output: str, target: Target) -> int:
    """Show addresses that nothing uses, and nodes that run out of addresses.

    The agents compare their store with the container runtime, the kernel and the provider each minute. They free an
    address only if runtime and kernel both lack its sandbox, twice. Exit status 1: there are problems, or a node did
    not answer.
    """
    if urls and nodes:
        raise BadInput("--url and --node exclude each other", "leave out one of them")
    return asyncio.run(_leaks(nodes, urls, system_namespace, output, target))


async def _leaks(nodes: tuple[str, ...], urls: tuple[str, ...], namespace: str, output: str, target: Target) -> int:
    async with open_agents(urls, nodes, namespace, target) as agents:
        answers = await read_pages(agents, _PAGE)
    pages, problems = _pages(answers)
    for page in pages:
        problems += ((page.node, each) for each in _states(page))
    if output:
        print_data(_data(pages, problems), output)
    else:
        _print(pages, problems)
    found = problems or any(page.findings for page in pages)
    return ExitCode.FAILED if found else ExitCode.DONE


def _pages(answers: Sequence[Answer]) -> tuple[list[AddressesPage], list[tuple[str, str]]]:
    """Return the pages, and (node, problem) of agents without one."""
    from muster.network.addresses.page import AddressesPage

    pages: list[AddressesPage] = []
    problems: list[tuple[str, str]] = []
    for answer in answers:
        page, problem = answer.decoded(AddressesPage, "a page of addresses")
        if page is None:
            problems.append((answer.name, problem))
        else:
            pages.append(page)
    return pages, problems


def _states(page: AddressesPage) -> list[str]:
    """What is the matter with a node as a whole."""
    found = []
    if page.problem:
        found.append(f"the store of addresses is not open: {page.problem}")
    if page.blind:
        found.append(f"no answer of the {' and the '.join(page.blind)}, so no address is freed")
    if page.status is not None and page.status.reason is not None:
        found.append(f"{page.status.free} free addresses: {page.status.message}")
    return found


def _print(pages: Sequence[AddressesPage], problems: Sequence[tuple[str, str]]) -> None:
    rows = [
        (
            page.node,
            each.problem.value,
            ", ".join(each.addresses) or "-",
            each.pod or "-",
            duration(each.seen_s) if each.seen_s else "-",
            each.key.container_id[:_ID_CHARS] if each.key is not None else "-",
            each.message,
        )
        for page in pages
        for each in page.findings
    ]
    if rows:
        print_table(HEADERS, rows, OPTIONAL)
    elif pages:
        click.echo(f"no leaked addresses on {len(pages)} node{'' if len(pages) == 1 else 's'}")
    for name, problem in problems:
        note(f"{name}: {problem}")


def _data(pages: Sequence[AddressesPage], problems: Sequence[tuple[str, str]]) -> dict[str, Any]:
    import msgspec

    return {
        "nodes": [msgspec.to_builtins(page) for page in pages],
        "problems": [{"node": name, "problem": problem} for name, problem in problems],
    }
