"""`muster stop`: suspends a job and gives its nodes back."""

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
    help="Return when the nodes are free. Exits with 6 if they are still in use two minutes after the end of the job's "
    "grace period.",
)
@cluster_options()
def command(name: str, wait: bool, target: Target) -> int:
    """Suspend the job NAME: its ranks stop, its nodes are free, and its last checkpoint is kept.

    Before that, Muster asks the ranks for a checkpoint (`muster.should_checkpoint()`). Logs are deleted with the pods.
    """
    return set_suspend(target, name, True, wait)
