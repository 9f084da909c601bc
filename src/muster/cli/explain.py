"""`muster explain`: why a job waits, or what it would take to place it."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import click

from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.output import output_option, print_data
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.api.training_job import TrainingJob
    from muster.cli.target import Cluster
    from muster.cli.whatif import Changes, View


@click.command()
@click.argument("name", required=False)
@click.option("-f", "--file", metavar="FILE", help="A TrainingJob that does not exist yet; - reads stdin.")
@click.option("--plus-nodes", type=click.IntRange(0, 20_000), default=0, help="As if there were more nodes.")
@click.option("--without-node", multiple=True, metavar="NODE", help="As if this node were not there.")
@click.option("--if-ended", multiple=True, metavar="JOB", help="As if this job had ended.")
@output_option("json", "yaml")
@cluster_options()
def command(
    name: str | None,
    file: str | None,
    plus_nodes: int,
    without_node: tuple[str, ...],
    if_ended: tuple[str, ...],
    output: str,
    target: Target,
) -> int:
    """Say why the job NAME waits and what would let it run, or whether the job in FILE could be placed now.

    The answer comes from the scheduler's own decision, taken on the cluster as it is, or as it would be.
    """
    if bool(name) == bool(file):
        raise BadInput("name a job, or a manifest with --file")
    cluster = resolve(target)
    job = _read(file, cluster.namespace) if file else None
    from muster.cli.whatif import Changes

    return asyncio.run(_explain(cluster, name or "", job, Changes(plus_nodes, without_node, if_ended), output))


def _read(file: str, namespace: str) -> TrainingJob:
    from muster.cli import manifest as manifests

    manifest = manifests.read_manifest(file)
    manifest["metadata"].setdefault("namespace", namespace)
    return manifests.checked(manifest)


async def _explain(cluster: Cluster, name: str, job: TrainingJob | None, changes: Changes, output: str) -> int:
    from muster.cli.watch import get_job
    from muster.cli.whatif import View

    async with cluster.client() as client:
        if job is None:
            job = await get_job(client, cluster.namespace, name)
            view = (await View.read(client)).changed(changes, cluster.namespace)
        else:
            view = (await View.read(client)).changed(changes, job.namespace).with_job(job)
    answer = explain_in(view, job)
    if output:
        print_data(answer, output)
    else:
        for line in answer["lines"]:
            click.echo(line)
    return ExitCode.DONE


def explain_in(view: View, job: TrainingJob) -> dict[str, Any]:
    """What the scheduler would do with a job in this view: whether it fits, and the explanation."""
    import msgspec

    from muster.cli.describe import finished
    from muster.scheduler.decide import decide
    from muster.scheduler.explain import explain

    if finished(job) or job.spec.suspend:
        return {"waits": False, "lines": [f"'{job.name}' wants no nodes: it is {job.status.phase}"]}
    snapshot = view.state().snapshot()
    gang = snapshot.find(job.namespace, job.name)
    if gang is None:
        raise CliError(f"'{job.name}' has no pods yet", "the controller makes them; is it running?")
    reason = decide(snapshot, time.time()).waiting.get(gang.key)
    if reason is None:
        placed = bool(gang.placement)
        return {"waits": False, "lines": [f"'{job.name}' {'has its nodes' if placed else 'would be placed now'}"]}
    explanation = explain(snapshot, gang, reason=reason)
    return {"waits": True, "lines": explanation.summary.splitlines(), "explanation": msgspec.to_builtins(explanation)}
