"""Command groups that show a table if they are called without a subcommand, such as `muster teams`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

from muster.api.names import SYSTEM_NAMESPACE
from muster.cli.errors import BadInput, ExitCode
from muster.cli.names import namespace as namespace_name
from muster.cli.output import output_option
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.cli.target import Cluster

system_namespace = click.option(
    "--system-namespace",
    default=SYSTEM_NAMESPACE,
    show_default=True,
    metavar="NAME",
    callback=namespace_name,
    help="Where Muster is.",
)


def table_group(show: Callable[[Cluster, str, str], Coroutine[Any, Any, int]]) -> click.Group:
    """Make a group from `show`, which receives the cluster, Muster's namespace and the output format."""

    @click.group("command", help=show.__doc__, invoke_without_command=True)
    @system_namespace
    @output_option("json", "yaml")
    @cluster_options()
    @click.pass_context
    def command(context: click.Context, system_namespace: str, output: str, target: Target) -> int:
        if context.invoked_subcommand is not None:
            if output or target != Target() or system_namespace != SYSTEM_NAMESPACE:
                raise BadInput(
                    "options before a subcommand have no effect", f"write them after '{context.invoked_subcommand}'"
                )
            return ExitCode.DONE
        return asyncio.run(show(resolve(target), system_namespace, output))

    return command
