"""`muster list`: lists jobs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from muster.cli.errors import CliError, ExitCode
from muster.cli.output import age, note, output_option, print_data, print_table
from muster.cli.program import prefix
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.api.training_job import TrainingJob
    from muster.cli.target import Cluster
    from muster.kube.client import Client

HEADERS = ("NAME", "PHASE", "NODES", "READY", "ATTEMPT", "STEP", "REPORTED", "RESTARTS", "AGE")
WIDE_HEADERS = (*HEADERS, "GPUS", "LAUNCHER", "MESSAGE")
BACKFILL = "BACKFILL"
"""A column that is shown only if one of the jobs is or was backfilled."""
STARTS = "STARTS"
"""A column that is shown only if it is estimated when one of the jobs starts."""
OPTIONAL = ("LAUNCHER", "GPUS", "RESTARTS", "ATTEMPT", "READY", "NODES", "REPORTED", "STEP", BACKFILL, STARTS, "AGE")
"""Columns that are omitted on a narrow terminal, in this order."""


@click.command()
@click.option("-A", "--all-namespaces", is_flag=True, help="Jobs of every namespace.")
@output_option("json", "yaml", "wide")
@cluster_options()
def command(target: Target, all_namespaces: bool, output: str) -> int:
    """List training jobs."""
    return asyncio.run(_list(resolve(target), all_namespaces, output))


async def _list(cluster: Cluster, all_namespaces: bool, output: str) -> int:
    from muster.api.training_job import TrainingJob
    from muster.cli.jobs.describe import as_data
    from muster.cli.jobs.untaken import reason, untaken_s

    namespace = None if all_namespaces else cluster.namespace
    async with cluster.client() as client:
        jobs = (await client.list(TrainingJob, namespace)).items
        if not jobs and namespace is not None:
            await _check_namespace(client, namespace)
        now = datetime.now(UTC)
        untaken = [job.name for job in jobs if untaken_s(job, now)]
        why = await reason(client, now) if untaken and output not in ("json", "yaml") else ""
    jobs.sort(key=lambda job: (job.namespace, job.name))
    if output in ("json", "yaml"):
        print_data({"apiVersion": "v1", "kind": "List", "items": [as_data(job) for job in jobs]}, output)
        return ExitCode.DONE
    if not jobs:
        where = "" if all_namespaces else f" in namespace {cluster.namespace}"
        note(f"no training jobs{where}; start one: {prefix()} run train.py")
        return ExitCode.DONE
    print_table(*table(jobs, wide=output == "wide", namespaces=all_namespaces), OPTIONAL)
    if why:
        more = f" and {len(untaken) - 1} more" if len(untaken) > 1 else ""
        note(f"no controller has taken {untaken[0]}{more}: {why}")
    return ExitCode.DONE


def table(jobs: list[TrainingJob], *, wide: bool, namespaces: bool) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Returns headers and rows of the table. `namespaces`: with a column for the namespace."""
    from muster.cli.jobs.describe import backfill_column, start_column

    headers = WIDE_HEADERS if wide else HEADERS
    rows = [_row(job)[: len(headers)] for job in jobs]
    for name, text_of in ((BACKFILL, backfill_column), (STARTS, start_column)):
        column = [text_of(job) for job in jobs]
        if any(column):
            headers = (*headers, name)
            rows = [(*row, text or "-") for row, text in zip(rows, column, strict=True)]
    if namespaces:
        headers = ("NAMESPACE", *headers)
        rows = [(job.namespace, *row) for job, row in zip(jobs, rows, strict=True)]
    return headers, rows


async def _check_namespace(client: Client, namespace: str) -> None:
    """Raise CliError if the namespace does not exist: listing it looks like listing an empty one."""
    from muster.kube.errors import Forbidden, NotFound
    from muster.kube.objects.core import Namespace

    try:
        await client.get(Namespace, namespace)
    except NotFound:
        hint = f"kubectl get namespaces lists them; {prefix()} list -A shows every job"
        raise CliError(f"there is no namespace '{namespace}'", hint, ExitCode.NOT_FOUND) from None
    except Forbidden:  # the user may have the right to list jobs, but not to read the namespace
        return


def _row(job: TrainingJob) -> tuple[str, ...]:
    from muster.cli.jobs.describe import attempt, reported_text, restarts

    spec, status = job.spec, job.status
    progress = status.progress
    step = (
        "-" if progress is None else f"{progress.step}" + (f"/{progress.total_steps}" if progress.total_steps else "")
    )
    return (
        job.name,
        status.phase,
        f"{status.size}/{spec.replicas}" if status.left_out else str(spec.replicas),
        str(status.ready_slots),
        str(attempt(job)),
        step,
        reported_text(job),
        str(restarts(job)),
        age(job.metadata.creation_timestamp),
        str(spec.replicas * job.gpus),
        spec.launcher,
        status.message.splitlines()[0] if status.message else "",
    )
