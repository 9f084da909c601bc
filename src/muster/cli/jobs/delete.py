"""`muster delete`: remove jobs and everything they own."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import click

from muster.cli.errors import CliError, ExitCode
from muster.cli.jobs.job_names import job_argument
from muster.cli.output import note
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.cli.target import Cluster
    from muster.kube.client import Client

_WAIT_S = 120.0
_POLL_S = 0.25
_QUIET_S = 2.0


@click.command()
@job_argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--ignore-not-found", is_flag=True, help="Do not fail if a job does not exist.")
@click.option("--no-wait", is_flag=True, help="Return before the pods are gone.")
@cluster_options()
def command(names: tuple[str, ...], ignore_not_found: bool, no_wait: bool, target: Target) -> int:
    """Delete training jobs with their pods, code and records."""
    return asyncio.run(_delete(resolve(target), names, ignore_not_found, not no_wait))


async def _delete(cluster: Cluster, names: tuple[str, ...], ignore_not_found: bool, wait: bool) -> int:
    from muster.api.training_job import TrainingJob
    from muster.cli.jobs.pods import members
    from muster.cli.jobs.watch import get_job

    missing: CliError | None = None
    async with cluster.client() as client:
        for name in names:
            try:
                job = await get_job(client, cluster.namespace, name)
            except CliError as error:
                if not ignore_not_found:
                    missing = missing or error
                continue
            await client.delete(TrainingJob, name, namespace=cluster.namespace, uid=job.uid, propagation="Background")
            began, said = time.monotonic(), False
            while wait and (await _exists(client, cluster.namespace, name, job.uid) or await members(client, job)):
                waited_s = time.monotonic() - began
                if waited_s > _QUIET_S and not said:
                    said = True
                    grace_s = job.spec.stop_grace_seconds
                    note(
                        f"waiting for the pods of '{name}' to end; its ranks have up to {grace_s} s (stopGraceSeconds)"
                    )
                if waited_s > _WAIT_S:
                    raise CliError(
                        f"'{name}' is being deleted, but its pods are still there after {_WAIT_S:.0f} s",
                        f"kubectl get pods -l muster.dev/gang={name}",
                        ExitCode.TIMED_OUT,
                    )
                await asyncio.sleep(_POLL_S)
            note(f"training job '{name}' deleted")
    if missing:
        raise missing
    return ExitCode.DONE


async def _exists(client: Client, namespace: str, name: str, uid: str) -> bool:
    from muster.api.training_job import TrainingJob
    from muster.kube.errors import NotFound

    try:
        return (await client.get(TrainingJob, name, namespace)).uid == uid
    except NotFound:
        return False
