"""`muster capacity`: shows the nodes of each pool, and how many are free."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from muster.cli.errors import ExitCode
from muster.cli.output import note, output_option, print_data, print_table
from muster.cli.table_group import system_namespace
from muster.cli.target import Target, cluster_options, resolve
from muster.cli.teams.teams import GUIDE

if TYPE_CHECKING:
    from muster.cli.target import Cluster

HEADERS = ("POOL", "NODES", "HEALTHY", "OWNED", "REST", "BUSY", "LENT", "IDLE", "GPUS", "GPUS_IDLE")
OPTIONAL = ("LENT", "BUSY", "OWNED", "REST", "GPUS", "HEALTHY", "NODES")


@click.command()
@system_namespace
@output_option("json", "yaml")
@cluster_options()
def command(system_namespace: str, output: str, target: Target) -> int:
    """Show the nodes of each pool: healthy, owned by teams, in use, idle; and their GPUs."""
    return asyncio.run(_show(resolve(target), system_namespace, output))


async def _show(cluster: Cluster, namespace: str, output: str) -> int:
    from msgspec import to_builtins

    from muster.teams.audit import capacity_of
    from muster.teams.load import load_holdings, load_source

    async with cluster.client() as client:
        holdings = await load_holdings(client, await load_source(client, namespace))
    pools = list(capacity_of(holdings))
    if output:
        print_data({"pools": to_builtins(pools)}, output)
        return ExitCode.DONE
    if not pools:
        note("there are no nodes")
        return ExitCode.DONE
    if not holdings.pools:
        note(f"no allocation defines a pool, so no node belongs to a pool; see {GUIDE}")
    rows = [(each.pool or "(no pool)", *(str(getattr(each, name.lower())) for name in HEADERS[1:])) for each in pools]
    print_table(HEADERS, rows, OPTIONAL)
    return ExitCode.DONE
