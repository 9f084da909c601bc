"""`muster stop`: give a job's nodes back and keep its state."""

from __future__ import annotations

import click

from muster.cli.jobs.job_names import job_argument
from muster.cli.jobs.suspend import set_suspend
from muster.cli.target import Target, cluster_options


@click.command()
@job_argument()
@click.option(
    "--wait",
    is_flag=True,
    help="Return when the nodes are free. Exits with 6 if they are not two minutes after the job's own grace.",
)
@cluster_options()
def command(name: str, wait: bool, target: Target) -> int:
    """Suspend the job NAME: its ranks stop, its nodes go back, its last checkpoint stays.

    Before they stop, ranks are asked for a checkpoint (`muster.should_checkpoint()`). Their logs go with the pods.
    """
    return set_suspend(target, name, True, wait)
