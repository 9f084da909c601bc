"""`muster resume`: continue a stopped job."""

from __future__ import annotations

import click

from muster.cli.jobs.job_names import job_argument
from muster.cli.jobs.suspend import set_suspend
from muster.cli.jobs.wait_timeout import check_waits, timeout_option
from muster.cli.target import Target, cluster_options


@click.command()
@job_argument()
@click.option("--wait", is_flag=True, help="Return when the ranks run.")
@timeout_option("--wait")
@cluster_options()
def command(name: str, wait: bool, timeout_s: int | None, target: Target) -> int:
    """Let the stopped job NAME continue from its last checkpoint."""
    check_waits(timeout_s, wait, "--wait")
    return set_suspend(target, name, False, wait, timeout_s)
