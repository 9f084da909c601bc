"""`muster exec`: a command, or a shell, in a rank's pod."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import click

from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.jobs.job_names import job_argument
from muster.cli.program import prefix
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.api.training_job import TrainingJob
    from muster.cli.target import Cluster
    from muster.kube.objects.pod import Pod

LIKE_A_RANK = (
    "sh",
    "-c",
    '[ ! -r /muster/rank.env ] || . /muster/rank.env; [ -z "$MUSTER_WORKDIR" ] || cd "$MUSTER_WORKDIR"; exec "$@"',
    "sh",
)
"""Prefix of a command: it then starts in the ranks' folder, with the rank numbers of the first rank on its node."""
SHELL = ("sh", "-c", "exec $(command -v bash || command -v sh)")


@click.command()
@job_argument()
@click.argument("arguments", nargs=-1, metavar="[-- COMMAND...]")
@click.option("--slot", type=click.IntRange(0), help="Slot whose pod to use (0).")
@click.option("--rank", type=click.IntRange(0), help="Use the pod of this rank, with its rank numbers.")
@cluster_options()
def command(name: str, arguments: tuple[str, ...], slot: int | None, rank: int | None, target: Target) -> int:
    """Run COMMAND or a shell in a pod of the job NAME, and exit with the command's status.

    COMMAND starts in the ranks' folder. It gets RANK, WORLD_SIZE and the other variables of the rank in --rank, or else
    of the pod's first rank. If stdin and stdout are a terminal, COMMAND has a terminal too. Otherwise COMMAND gets
    stdin unchanged.
    """
    if rank is not None and slot is not None:
        raise BadInput("--rank and --slot exclude each other")
    return asyncio.run(_exec(resolve(target), name, slot or 0, rank, arguments or SHELL))


def like_rank(rank: int, ranks_per_node: int) -> tuple[str, ...]:
    """Return the second prefix of a command: it sets the numbers of the given rank instead of the first rank's."""
    return ("env", f"RANK={rank}", f"LOCAL_RANK={rank % ranks_per_node}")


async def _exec(cluster: Cluster, name: str, slot: int, rank: int | None, arguments: tuple[str, ...]) -> int:
    from muster.cli.jobs.pods import members, pod_of_slot, slot_of_rank
    from muster.cli.jobs.watch import get_job_as_it_runs
    from muster.cli.ranks.remote import execute
    from muster.kube.errors import Invalid, NotFound

    async with cluster.client() as client:
        job = await get_job_as_it_runs(client, cluster.namespace, name)
        if rank is not None:
            slot = slot_of_rank(job, rank)
            arguments = (*like_rank(rank, job.ranks), *arguments)
        pod = pod_of_slot(job, await members(client, job), slot)
        if not _runs(pod):
            raise _cannot(job, slot, pod, "")
        terminal = sys.stdin.isatty() and sys.stdout.isatty()
        try:
            return await execute(client, pod, (*LIKE_A_RANK, *arguments), terminal=terminal)
        except (Invalid, NotFound) as error:  # the pod ended or was replaced in the meantime
            raise _cannot(job, slot, pod, error.message) from None


def _runs(pod: Pod) -> bool:
    """Returns whether the pod's worker runs now."""
    from muster.api.names import WORKER_CONTAINER

    workers = [status for status in pod.status.container_statuses if status.name == WORKER_CONTAINER]
    return any(status.state is not None and status.state.running is not None for status in workers)


def _cannot(job: TrainingJob, slot: int, pod: Pod, said: str) -> CliError:
    """Returns the error for a pod in which no command can run, with a hint."""
    from muster.cli.jobs.pods import state_of

    if pod.status.phase in ("Succeeded", "Failed"):
        hint = f"it has ended; what it wrote: {prefix()} logs {job.name} --slot {slot}"
    else:
        hint = f"wait until it runs: {prefix()} status {job.name} --follow"
    why = said or f"its pod {pod.name} is {state_of(pod)}"
    return CliError(f"no command can run in slot {slot} of '{job.name}' now: {why}", hint, ExitCode.CONFLICT)
