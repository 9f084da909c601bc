"""`muster nodes`: why a node is as it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from muster.cli.errors import CliError, ExitCode
from muster.cli.output import age, output_option, print_data
from muster.cli.target import Target, cluster_options, resolve
from muster.cli.teams import REST, system_namespace

if TYPE_CHECKING:
    from muster.cli.target import Cluster
    from muster.teams.audit import NodeAccount


@click.group()
def command() -> None:
    """Say why nodes are as they are."""


@command.command()
@click.argument("name", metavar="NODE")
@system_namespace
@output_option("json", "yaml")
@cluster_options()
def why(name: str, system_namespace: str, output: str, target: Target) -> int:
    """Say whose NODE is, since when and why, what is on it, and whether it is to change hands."""
    account = asyncio.run(_account(resolve(target), system_namespace, name))
    if output:
        from msgspec import to_builtins

        print_data(to_builtins(account), output)
    else:
        for line in _lines(account):
            click.echo(line)
    return ExitCode.DONE


async def _account(cluster: Cluster, namespace: str, name: str) -> NodeAccount:
    from muster.teams.audit import account_of
    from muster.teams.decide import decide
    from muster.teams.loading import load_holdings, load_source

    async with cluster.client() as client:
        holdings = await load_holdings(client, await load_source(client, namespace))
    if name not in holdings.nodes:
        raise CliError(f"no node '{name}'", "kubectl get nodes lists them", ExitCode.NOT_FOUND)
    return account_of(holdings, name, decide(holdings, time.time()))


def _lines(account: NodeAccount) -> Iterator[str]:
    owner = account.team or REST
    if account.by_hand:
        yield f"{account.node} belongs to {owner}: somebody labelled it by hand, Muster leaves it alone"
    elif account.since is None:
        yield f"{account.node} belongs to {owner}: no allocation has taken it"
    else:
        yield f"{account.node} belongs to {owner} since {account.since.isoformat()} ({age(account.since)})"
        yield f"  why: {account.why} (by {account.by})"
    yield f"  pool: {account.pool or 'none: no allocation selects it'}"
    if not account.healthy:
        yield "  not well: it is not ready, cordoned or being deleted"
    if account.gangs:
        yield f"  in use by {', '.join(account.gangs)}"
    if account.borrowers:
        yield f"  lent to {', '.join(account.borrowers)}"
    if not (account.gangs or account.borrowers):
        yield "  idle"
    if account.becomes is not None and account.becomes != account.team:
        yield f"  is to go to {account.becomes or REST}: {account.because}"
    elif account.becomes is not None:
        yield "  label and taint are to be put back"
