"""`muster version`: prints the versions of Muster, Python and the cluster."""

from __future__ import annotations

import asyncio
import json
import platform
from importlib.metadata import version

import click

from muster.cli.errors import CliError, ExitCode
from muster.cli.output import output_option, print_data
from muster.cli.target import Cluster, Target, cluster_options, resolve


@click.command()
@output_option("json", "yaml")
@cluster_options()
def command(target: Target, output: str) -> int:
    """Print the versions of Muster, Python and the cluster."""
    versions = {"muster": version("muster"), "python": platform.python_version(), "cluster": _cluster(target)}
    if output:
        print_data(versions, output)
    else:
        for name, value in versions.items():
            click.echo(f"{name:<8} {value}")
    return ExitCode.DONE


def _cluster(target: Target) -> str:
    """The cluster's version, or why it is not known."""
    from muster.kube.errors import ApiError

    try:
        cluster = resolve(target)
        return f"{asyncio.run(_server_version(cluster))} ({cluster.description})"
    except CliError as error:
        return f"none ({error.message})"
    except ApiError as error:
        return f"unreachable ({error})"


async def _server_version(cluster: Cluster) -> str:
    async with cluster.client() as client:
        return str(json.loads(await client.request("GET", "/version"))["gitVersion"])
