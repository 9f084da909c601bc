"""`muster fault`: causes a fault in an embedded cluster on purpose."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import click

from muster.cli.errors import CliError, ExitCode
from muster.cli.jobs.job_names import job_argument
from muster.cli.local.up import translated
from muster.cli.names import node_argument
from muster.cli.output import note
from muster.cli.program import prefix
from muster.cli.target import Target, cluster_options, resolve, stored_at

if TYPE_CHECKING:
    from muster.api.training_job import TrainingJob
    from muster.cli.target import Cluster
    from muster.embedded.layout import Layout


@click.group()
def command() -> None:
    """Cause a fault in an embedded cluster on purpose. Other clusters are refused."""


@command.command()
@node_argument(metavar="NAME")
@cluster_options()
def node(name: str, target: Target) -> int:
    """Make the node NAME fail as in a power cut: kill its kubelet and every process on it."""
    from muster.embedded import cluster

    layout = _layout_with(resolve(target), name)
    with translated():
        cluster.vanish(layout, name)
    note(f"{name} has vanished; `muster fault return {name}` brings it back")
    return ExitCode.DONE


@command.command(name="return")
@node_argument(metavar="NAME")
@cluster_options()
def return_(name: str, target: Target) -> int:
    """Start the failed node NAME again."""
    from muster.embedded import cluster

    reached = resolve(target)
    layout = _layout_with(reached, name)
    with translated():
        if cluster.bring_back(layout, name):
            note(f"{name} comes back")
        elif asyncio.run(_is_deleted(reached, name)):  # a kubelet registers its node only at its start
            cluster.vanish(layout, name)
            cluster.bring_back(layout, name)
            note(f"{name} comes back: its Node had been deleted, and its kubelet registers it again")
        else:
            note(f"{name} is there already: it has not vanished")
    return ExitCode.DONE


async def _is_deleted(cluster: Cluster, name: str) -> bool:
    from muster.kube.errors import NotFound
    from muster.kube.objects.node import Node

    async with cluster.client() as client:
        try:
            await client.get(Node, name)
        except NotFound:
            return True
    return False


@command.command()
@job_argument("job")
@click.argument("slot", type=click.IntRange(0))
@click.option("--rank", type=click.IntRange(0), help="This rank (the slot's first).")
@cluster_options()
def rank(job: str, slot: int, rank: int | None, target: Target) -> int:
    """Kill (SIGKILL) a rank's process in slot SLOT of the job JOB."""
    cluster = resolve(target)
    killed = asyncio.run(kill_rank(cluster, _layout(cluster), job, slot, rank))
    note(f"rank {killed} of '{job}', in slot {slot}, was killed")
    return ExitCode.DONE


async def kill_rank(cluster: Cluster, layout: Layout, job_name: str, slot: int, rank: int | None = None) -> int:
    """Kill a rank's process; returns its number."""
    from muster.cli.jobs.describe import finished
    from muster.cli.jobs.pods import members, pod_of_slot
    from muster.cli.jobs.watch import get_job_as_it_runs
    from muster.embedded import cluster as embedded

    async with cluster.client() as client:
        job = await get_job_as_it_runs(client, cluster.namespace, job_name)
        if finished(job):
            raise CliError(f"job '{job.name}' has ended ({job.status.phase})")
        pod = pod_of_slot(job, await members(client, job), slot)
    if rank is not None:
        _check_rank(job, rank)
    with translated():
        return await asyncio.to_thread(embedded.kill_rank, layout, pod.uid, rank)


def _check_rank(job: TrainingJob, rank: int) -> None:
    """Refuse a rank that the job does not have. Raises CliError."""
    each = job.ranks
    last = job.spec.replicas * each - 1
    if rank > last:
        raise CliError(
            f"'{job.name}' has no rank {rank}",
            f"it has the ranks 0 to {last}" if last else "it has rank 0 only",
            ExitCode.NOT_FOUND,
        )


def _layout_with(cluster: Cluster, node: str) -> Layout:
    """Returns the layout of the embedded cluster that has this node."""
    layout = _layout(cluster)
    spec = layout.read_spec()
    names = spec.node_names() if spec else []
    if node not in names:
        raise CliError(f"no node '{node}'", f"there are {', '.join(names)}", ExitCode.NOT_FOUND)
    return layout


def _layout(cluster: Cluster) -> Layout:
    """Returns the layout of an embedded cluster; CliError if the cluster is not embedded or does not run."""
    from muster.embedded.layout import DEFAULT_NAME

    if cluster.embedded:
        return cluster.embedded
    stored = stored_at(cluster.config.server)
    spec = stored.read_spec() if stored else None
    if spec:
        name = "" if spec.name == DEFAULT_NAME else f" --name {spec.name}"
        raise CliError(
            f"the embedded cluster '{spec.name}' is not running",
            f"start it again, jobs included: {prefix()} up{name}",
            ExitCode.NO_CLUSTER,
        )
    raise CliError(
        f"faults are for embedded clusters only, and this is {cluster.description}",
        "muster up starts one; --embedded chooses it",
        ExitCode.BAD_INPUT,
    )
