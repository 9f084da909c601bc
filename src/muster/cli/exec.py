"""`muster exec`: a command, or a shell, in a rank's pod."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.cli.target import Cluster

SHELL = ("sh", "-c", "exec $(command -v bash || command -v sh)")


@click.command()
@click.argument("name")
@click.argument("arguments", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--slot", type=click.IntRange(0), default=0, help="Slot whose pod to use (0).")
@cluster_options()
def command(name: str, arguments: tuple[str, ...], slot: int, target: Target) -> int:
    """Run COMMAND in a pod of the job NAME, or a shell; exits as the command did.

    A terminal is used where stdin and stdout are one; otherwise stdin is passed on as it is.
    """
    return asyncio.run(_exec(resolve(target), name, slot, arguments or SHELL))


async def _exec(cluster: Cluster, name: str, slot: int, arguments: tuple[str, ...]) -> int:
    from muster.cli.pods import members, pod_of_slot
    from muster.cli.remote import execute
    from muster.cli.watch import get_job

    async with cluster.client() as client:
        job = await get_job(client, cluster.namespace, name)
        pod = pod_of_slot(job, await members(client, job), slot)
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        return await execute(client, pod, arguments, terminal=terminal)
