"""`muster logs`: prints the output of a job's ranks."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from muster.api.visible import visible
from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.jobs.job_names import job_argument
from muster.cli.output import colored, note
from muster.cli.program import prefix
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.api.training_job import TrainingJob
    from muster.cli.ranks.log_stream import Selection
    from muster.cli.target import Cluster
    from muster.kube.objects.pod import Pod

_COLORS = ("cyan", "magenta", "yellow", "green", "blue", "red")


@click.command()
@job_argument()
@click.option("--rank", type=click.IntRange(0), help="Print the output of this rank only.")
@click.option("--slot", type=click.IntRange(0), help="Print the output of this slot only.")
@click.option("--attempt", type=click.IntRange(1), help="Print the output of this attempt.")
@click.option("--previous", is_flag=True, help="Print the output of the attempt before the current one.")
@click.option("-f", "--follow", is_flag=True, help="Continue with new output until the job ends.")
@click.option("--tail", type=click.IntRange(0), metavar="LINES", help="Print only this many last lines of each slot.")
@cluster_options()
def command(
    name: str,
    rank: int | None,
    slot: int | None,
    attempt: int | None,
    previous: bool,
    follow: bool,
    tail: int | None,
    target: Target,
) -> int:
    """Print the output of the ranks of the job NAME.

    Each line begins with its slot. The rank comes after the slot if the slot has several ranks or the launcher is mpi.
    """
    if rank is not None and slot is not None:
        raise BadInput("--rank and --slot exclude each other")
    if previous and attempt is not None:
        raise BadInput("--previous and --attempt exclude each other")
    logs = _logs(resolve(target), name, previous, follow, slot=slot, attempt=attempt, tail=tail, rank=rank)
    return asyncio.run(logs)


async def _logs(
    cluster: Cluster,
    name: str,
    previous: bool,
    follow: bool,
    *,
    slot: int | None,
    attempt: int | None,
    tail: int | None,
    rank: int | None,
) -> int:
    from muster.cli.jobs import describe
    from muster.cli.jobs.interrupt import detachable
    from muster.cli.jobs.pods import check_rank
    from muster.cli.jobs.watch import get_job_as_it_runs
    from muster.cli.ranks.log_stream import JobLogs, Selection

    async with cluster.client() as client:
        job = await get_job_as_it_runs(client, cluster.namespace, name)
        if rank is not None:
            check_rank(job, rank)
        if slot is not None and slot >= job.spec.replicas:
            raise BadInput(f"'{name}' has no slot {slot}", f"it has 0 to {job.spec.replicas - 1}")
        if previous:
            newest = describe.attempt(job)
            if newest < 2:
                raise CliError(f"'{name}' is at attempt {newest}: there is no earlier one", "", ExitCode.NOT_FOUND)
            attempt = newest - 1
        wanted = Selection(slot, attempt, tail, rank)
        width = len(str(job.spec.replicas - 1))
        logs = JobLogs(client=client, job=job, wanted=wanted, sink=lambda slot, texts: print_lines(slot, width, texts))
        if follow:
            with detachable(name, prefix(), "logs {} -f"):
                job = await logs.follow()
        else:
            await logs.print_now()
    if logs.silent:
        note(_not_started(job, logs.silent))
    if wanted.attempt is not None and not logs.found:
        raise CliError(_nothing_of(wanted, describe.attempt(job)), "", ExitCode.NOT_FOUND)
    return ExitCode.DONE


def print_lines(slot: int, width: int, texts: Sequence[str], *, err: bool = False) -> None:
    """Print lines of a slot, each after the slot's number. The program's colours stay if stdout is coloured."""
    lines = labelled(slot, width, texts, colored(sys.stderr if err else sys.stdout))
    click.echo("".join(f"{line}\n" for line in lines), nl=False, err=err)


def labelled(slot: int, width: int, texts: Sequence[str], colors: bool) -> Iterator[str]:
    """Return lines of a slot after the slot's number; with `colors` both are coloured."""
    label = f"[{slot:>{width}}]"
    if colors:
        label = click.style(label, fg=_COLORS[slot % len(_COLORS)])
    for text in texts:
        yield f"{label} {visible(text, colors=colors)}"


def _nothing_of(wanted: Selection, current: int) -> str:
    """Returns the message if no line of the wanted attempt exists."""
    whose = f"slot {wanted.slot} in " if wanted.slot is not None else ""
    whose = f"rank {wanted.rank} in " if wanted.rank is not None else whose
    lines = f"no lines of {whose}attempt {wanted.attempt}"
    return f"{lines}; the job is at attempt {current}; logs of an attempt go with its pods"


def _not_started(job: TrainingJob, pods: list[Pod]) -> str:
    """Returns one line about all pods that have no log yet."""
    from muster.cli.jobs.pods import slot_of, state_of

    if len(pods) == 1:
        return f"slot {slot_of(pods[0])} has not started: {state_of(pods[0])}"
    states = Counter(state_of(pod) for pod in pods).most_common()
    shown = [state for state, _ in states] if len(states) == 1 else [f"{count} {state}" for state, count in states]
    return f"{len(pods)} of {job.spec.replicas} slots have not started: {', '.join(shown)}"
