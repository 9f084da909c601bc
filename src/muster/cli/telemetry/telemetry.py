"""`muster telemetry`: the group."""

from __future__ import annotations

from typing import Final

import click

from muster.cli.lazy_group import LazyGroup

SUBCOMMANDS: Final[dict[str, str]] = {
    "cardinality": "muster.cli.telemetry.cardinality",
    "dearest": "muster.cli.telemetry.dearest",
    "replay": "muster.cli.telemetry.replay",
    "rules": "muster.cli.telemetry.rules",
    "unused": "muster.cli.telemetry.unused",
}


@click.group("telemetry", cls=LazyGroup, modules=SUBCOMMANDS)
def command() -> None:
    """Show which metrics are used, what grows, and how long a restart of Prometheus takes."""
