"""`muster network`: the group."""

from __future__ import annotations

from typing import Final

import click

from muster.cli.lazy_group import LazyGroup

SUBCOMMANDS: Final[dict[str, str]] = {
    "plan": "muster.cli.network.plan",
    "check": "muster.cli.network.check",
    "agent": "muster.cli.network.agent",
    "doctor": "muster.cli.network.doctor",
    "top": "muster.cli.network.top",
    "uplink": "muster.cli.network.uplink",
    "leaks": "muster.cli.network.leaks",
}


@click.group("network", cls=LazyGroup, modules=SUBCOMMANDS)
def command() -> None:
    """Show and plan the cluster's network: traffic per job, the uplink, addresses."""
