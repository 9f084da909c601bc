"""`muster logs`: what the ranks of a job wrote."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple

import click

from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.jobnames import job_argument
from muster.cli.output import note, paint
from muster.cli.program import prefix
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.api.training_job import TrainingJob
    from muster.cli.target import Cluster
    from muster.kube.client import Client
    from muster.kube.pod import Pod

STREAMS_MAX = 32
_POLL_S = 1.0
_DRAIN_S = 15.0
_COLORS = ("cyan", "magenta", "yellow", "green", "blue", "red")


class Selection(NamedTuple):
    """Which lines to print; None means any."""

    slot: int | None
    attempt: int | None
    tail: int | None
    rank: int | None = None


@click.command()
@job_argument()
@click.option("--rank", type=click.IntRange(0), help="One rank only.")
@click.option("--slot", type=click.IntRange(0), help="One slot only.")
@click.option("--attempt", type=click.IntRange(1), help="One attempt only.")
@click.option("--previous", is_flag=True, help="The attempt before the current one.")
@click.option("-f", "--follow", is_flag=True, help="Go on as more is written, until the job ends.")
@click.option("--tail", type=click.IntRange(0), metavar="LINES", help="The last lines of each slot.")
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
    """Print what the ranks of the job NAME wrote; each line begins with its slot.

    Where a slot has several ranks, or the launcher is mpi, the rank follows.
    """
    if rank is not None and slot is not None:
        raise BadInput("--rank and --slot exclude each other")
    if previous and attempt is not None:
        raise BadInput("--previous and --attempt exclude each other")
    return asyncio.run(_logs(resolve(target), name, previous, follow, Selection(slot, attempt, tail, rank)))


async def _logs(cluster: Cluster, name: str, previous: bool, follow: bool, wanted: Selection) -> int:
    from muster.cli import describe
    from muster.cli.follow import detachable
    from muster.cli.pods import members
    from muster.cli.watch import get_job

    async with cluster.client() as client:
        job = await get_job(client, cluster.namespace, name)
        if wanted.rank is not None and wanted.rank >= job.spec.replicas * job.ranks:
            raise BadInput(f"'{name}' has no rank {wanted.rank}", f"it has 0 to {job.spec.replicas * job.ranks - 1}")
        if wanted.slot is not None and wanted.slot >= job.spec.replicas:
            raise BadInput(f"'{name}' has no slot {wanted.slot}", f"it has 0 to {job.spec.replicas - 1}")
        if previous:
            newest = describe.attempt(job)
            if newest < 2:
                raise CliError(f"'{name}' is at attempt {newest}: there is no earlier one", "", ExitCode.NOT_FOUND)
            wanted = wanted._replace(attempt=newest - 1)
        found: set[str] = set()
        silent: list[Pod] = []
        if follow:
            with detachable(name, prefix(), "logs {} -f"):
                job = await _follow(client, job, wanted, found, silent)
        else:
            pods = _chosen(job, await members(client, job), wanted)
            if not pods:
                note(f"'{name}' has no pods now ({job.status.phase})")
            for pod in pods:
                if await _print(client, job, pod, wanted, found, silent, follow=False):
                    break
    if silent:
        note(_not_started(job, silent))
    if wanted.attempt is not None and not found:
        raise CliError(_nothing_of(wanted, describe.attempt(job)), "", ExitCode.NOT_FOUND)
    return ExitCode.DONE


def _nothing_of(wanted: Selection, current: int) -> str:
    """What to say where no line of the wanted attempt is there."""
    whose = f"slot {wanted.slot} in " if wanted.slot is not None else ""
    whose = f"rank {wanted.rank} in " if wanted.rank is not None else whose
    lines = f"no lines of {whose}attempt {wanted.attempt}"
    return f"{lines}; the job is at attempt {current}; logs of an attempt go with its pods"


def _not_started(job: TrainingJob, pods: list[Pod]) -> str:
    """One line about all pods that have no log yet."""
    from muster.cli.pods import slot_of, state_of

    if len(pods) == 1:
        return f"slot {slot_of(pods[0])} has not started: {state_of(pods[0])}"
    states = Counter(state_of(pod) for pod in pods).most_common()
    shown = [state for state, _ in states] if len(states) == 1 else [f"{count} {state}" for state, count in states]
    return f"{len(pods)} of {job.spec.replicas} slots have not started: {', '.join(shown)}"


def _chosen(job: TrainingJob, pods: list[Pod], wanted: Selection) -> list[Pod]:
    from muster.cli.pods import slot_of

    chosen = [pod for pod in pods if wanted.slot in (None, slot_of(pod))]
    if wanted.rank is not None:  # ranks are numbered in the order of slots unless the network suggests another one
        guess = wanted.rank // job.ranks
        chosen.sort(key=lambda pod: slot_of(pod) != guess)
        return chosen
    if len(chosen) > STREAMS_MAX:
        note(f"'{job.name}' has {len(chosen)} pods: showing the first {STREAMS_MAX}; choose with --slot")
    return chosen[:STREAMS_MAX]


async def _follow(
    client: Client, job: TrainingJob, wanted: Selection, found: set[str], silent: list[Pod]
) -> TrainingJob:
    """Print every chosen pod's log, those of later attempts too, until the job ends; returns the job as it ended."""
    from muster.cli import describe
    from muster.cli.pods import members
    from muster.cli.watch import get_job

    streams: dict[str, asyncio.Task[bool]] = {}
    try:
        while True:
            current = await get_job(client, job.namespace, job.name)
            for pod in _chosen(job, await members(client, job), wanted)[:STREAMS_MAX]:
                started = any(status.state and not status.state.waiting for status in pod.status.container_statuses)
                if started and pod.uid not in streams:
                    streams[pod.uid] = asyncio.create_task(_print(client, job, pod, wanted, found, silent, follow=True))
            if describe.finished(current):
                if streams:  # a node that is gone ends no stream
                    await asyncio.wait(streams.values(), timeout=_DRAIN_S)
                break
            await asyncio.sleep(_POLL_S)
    finally:
        for task in streams.values():
            task.cancel()
        results = await asyncio.gather(*streams.values(), return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result
    return current


async def _print(
    client: Client,
    job: TrainingJob,
    pod: Pod,
    wanted: Selection,
    found: set[str],
    silent: list[Pod],
    *,
    follow: bool,
) -> bool:
    """Print what is wanted of a pod's log; returns whether the wanted rank was at home here all the time.

    The uids of pods that had something go into `found`, whatever --tail leaves of it, and pods that have not started
    into `silent`.
    """
    from muster.cli.loglines import log_lines
    from muster.cli.pods import attempt_of, slot_of
    from muster.kube.errors import Invalid, NotFound

    slot = slot_of(pod)
    width = len(str(job.spec.replicas - 1))
    label = paint(f"[{slot:>{width}}]", _COLORS[slot % len(_COLORS)])
    kept: deque[str] = deque(maxlen=wanted.tail)
    named = job.spec.launcher == "mpi" or job.ranks > 1
    homes = set()
    try:
        async for line in log_lines(client, pod, attempt_of(pod), follow):
            if wanted.attempt not in (None, line.attempt):
                continue
            homes.add(line.node)
            if wanted.rank is not None and not line.of_rank(wanted.rank, job.ranks, named=named):
                continue
            found.add(pod.uid)
            if follow and wanted.tail is None:
                click.echo(f"{label} {line.text}")
            else:
                kept.append(line.text)
    except NotFound:
        return False  # replaced meanwhile; its successor is printed in its turn
    except Invalid:
        silent.append(pod)
    for text in kept:
        click.echo(f"{label} {text}")
    return wanted.rank is not None and homes - {-1} == {wanted.rank // job.ranks}
