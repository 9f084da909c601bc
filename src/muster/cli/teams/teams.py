"""`muster teams`: shows which nodes teams own, and what another configuration would change."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from muster.api.names import TEAMS_CONFIG_MAP
from muster.cli.errors import BadInput, ExitCode
from muster.cli.output import note, output_option, print_data, print_table
from muster.cli.program import prefix
from muster.cli.table_group import table_group
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.cli.target import Cluster
    from muster.teams.cache import Holdings
    from muster.teams.config import TeamsConfig
    from muster.teams.plan import Change, Plan

HEADERS = ("TEAM", "POOL", "ASKED", "ENTITLED", "OWNED", "HEALTHY", "USED", "LENT", "BORROWED", "PENDING")
OPTIONAL = ("ASKED", "BORROWED", "LENT", "PENDING", "USED", "HEALTHY", "POOL")
PLAN_HEADERS = ("NODE", "FROM", "TO", "WHEN", "WHY")
REST = "(rest)"
GUIDE = "docs/teams.md"


@table_group
async def command(cluster: Cluster, namespace: str, output: str) -> int:
    """Show the nodes of teams: entitled, owned, healthy, used by the team, lent, borrowed, pending."""
    from muster.teams.decide import decide
    from muster.teams.plan import Why

    holdings = await _holdings(cluster, namespace)
    plan = decide(holdings, time.time())
    if output:
        print_data(_data(plan), output)
        return ExitCode.DONE
    owned = Counter(held.owner for held in holdings.nodes.values() if held.owner)
    if not owned and [each.why for each in plan.cautions] == [Why.DELETED]:
        note(f"there is no ConfigMap {TEAMS_CONFIG_MAP}, and no node belongs to a team")
    else:
        _say_cautions(plan)
    if not plan.standings:
        note("owned now: " + (", ".join(f"{team} {count}" for team, count in sorted(owned.items())) or "no node"))
        note(f"to give nodes to teams: {GUIDE}; {prefix()} teams plan -f FILE shows what a file would change")
        return ExitCode.DONE
    rows = [
        (each.team or REST, each.pool, each.asked or "-", *(str(getattr(each, name.lower())) for name in HEADERS[3:]))
        for each in plan.standings
    ]
    # With the pool in the key, a team in several pools has one row for each.
    print_table(HEADERS, rows, OPTIONAL if len({each.pool for each in plan.standings}) == 1 else OPTIONAL[:-1])
    return ExitCode.DONE


@command.command("plan")
@click.option("-f", "--file", required=True, metavar="FILE", help="The new teams.yaml, or a ConfigMap; - reads stdin.")
@output_option("json", "yaml")
@cluster_options()
def plan_command(file: str, output: str, target: Target) -> int:
    """Show for each node what the configuration in FILE would change, without changing it."""
    config = read_config(file)
    return asyncio.run(_plan(resolve(target), config, output))


def read_config(file: str) -> TeamsConfig:
    """Read teams.yaml, or a ConfigMap that holds it. Raises BadInput with all errors and their lines."""
    from muster.teams.config import parse_manifest
    from muster.teams.yaml_reader import TeamsConfigError

    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{file} cannot be read: {getattr(error, 'strerror', None) or 'it is not text'}") from None
    try:
        return parse_manifest(text)
    except TeamsConfigError as error:
        raise BadInput(f"{file}: " + f"\n{file}: ".join(map(str, error.problems))) from None


async def _holdings(cluster: Cluster, namespace: str) -> Holdings:
    from muster.teams.load import load_holdings, load_source

    async with cluster.client() as client:
        return await load_holdings(client, await load_source(client, namespace))


async def _plan(cluster: Cluster, config: TeamsConfig, output: str) -> int:
    from msgspec.structs import replace

    from muster.teams.decide import decide
    from muster.teams.load import load_holdings
    from muster.teams.source import in_force
    from muster.teams.usage import Rank

    async with cluster.client() as client:
        holdings = await load_holdings(client, in_force(replace(config, running_gangs="Move")))
    plan = decide(holdings, time.time())
    waits = config.running_gangs == "Wait"

    def when(change: Change) -> str:
        moves = change.previous != change.record.team
        if not (waits and moves and holdings.nodes[change.node].rank is Rank.BUSY):
            return "now"
        gangs = dict.fromkeys([*(use.gang for use in holdings.uses(change.node)), *holdings.kept_by(change.node)])
        return f"after {', '.join(gangs)}"

    if output:
        changes = [
            {
                "node": change.node,
                "from": change.previous,
                "to": change.record.team,
                "when": when(change),
                "reason": change.why.value,
                "message": change.record.why,
            }
            for change in plan.changes
        ]
        print_data({"changes": changes, **_data(plan)}, output)
        return ExitCode.DONE
    _say_cautions(plan)
    if not plan.changes:
        note("no node would change hands")
        return ExitCode.DONE
    rows = [
        (change.node, change.previous or REST, change.record.team or REST, when(change), change.record.why)
        for change in plan.changes
    ]
    print_table(PLAN_HEADERS, rows, ("FROM", "WHEN"))
    return ExitCode.DONE


def _say_cautions(plan: Plan) -> None:
    for each in plan.cautions:
        note(f"{each.why.value}: {f'{each.pool}: ' if each.pool else ''}{each.message}")


def _data(plan: Plan) -> dict[str, Any]:
    from msgspec import to_builtins

    return {
        "teams": to_builtins(plan.standings),
        "cautions": [{"reason": each.why.value, "pool": each.pool, "message": each.message} for each in plan.cautions],
    }
