"""`muster checkpoints`: a job's checkpoints, as its status and the checkpoints' own manifests describe them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from muster.cli.data.sizes import size
from muster.cli.errors import BadInput, ExitCode
from muster.cli.jobs.job_names import job_argument
from muster.cli.jobs.verify_checkpoints import GONE
from muster.cli.names import not_empty
from muster.cli.output import age, note, output_option, print_data, print_table, say
from muster.cli.program import prefix
from muster.cli.target import Target, cluster_options, resolve
from muster.kube.objects.struct import to_dict

if TYPE_CHECKING:
    from muster.api.training_job import TrainingJob
    from muster.api.training_job_status import CheckpointStatus
    from muster.cli.jobs.verify_checkpoints import Check
    from muster.cli.target import Cluster

HEADERS = ("STEP", "SIZE", "SHARDS", "ATTEMPT", "CONFIRMED", "VERIFIED", "STATE", "PATH")
OPTIONAL = ("SHARDS", "ATTEMPT", "VERIFIED", "CONFIRMED", "SIZE")


@click.command()
@job_argument()
@click.option(
    "--verify",
    is_flag=True,
    help="Read the checkpoints from this machine, and compare each shard with its size and checksum.",
)
@click.option(
    "--credentials",
    default="",
    metavar="DIR",
    callback=not_empty,
    help="With --verify: folder with a file for each variable, such as AWS_ACCESS_KEY_ID (the environment).",
)
@output_option("json", "yaml")
@cluster_options()
def command(name: str, verify: bool, credentials: str, output: str, target: Target) -> int:
    """List the checkpoints of the job NAME, and why some of them are not used.

    VERIFIED is when all nodes last restored the checkpoint and found it intact. With --verify the exit code is 1 if a
    confirmed checkpoint is damaged or cannot be read from here.
    """
    if credentials and not verify:
        raise BadInput("--credentials goes with --verify")
    return asyncio.run(_show(resolve(target), name, verify, credentials, output))


async def _show(cluster: Cluster, name: str, verify: bool, credentials: str, output: str) -> int:
    from muster.cli.jobs.verify_checkpoints import verify_all
    from muster.cli.jobs.watch import get_job
    from muster.trainingjobs.attempts.checkpoints import known

    async with cluster.client() as client:
        job = await get_job(client, cluster.namespace, name)
    listed = known(job.status)
    checks: Sequence[Check] = ()
    if verify:
        checks = await asyncio.to_thread(verify_all, job, listed, credentials)
    if output:
        print_data(as_data(job, listed, checks), output)
    else:
        _print(job, listed, checks)
    return ExitCode.FAILED if any(check.problem for check in checks) else ExitCode.DONE


def as_data(job: TrainingJob, listed: Sequence[CheckpointStatus], checks: Sequence[Check]) -> dict[str, Any]:
    """Return the checkpoints for scripts: those of the status, newest first, each with its state."""
    found = [{**to_dict(each), "state": "Confirmed"} for each in listed]
    for entry, check in zip(found, checks, strict=False):
        entry["check"] = {"ok": not check.problem, "reason": check.reason, "message": check.problem}
    bad = [{**to_dict(each), "state": "Quarantined"} for each in reversed(job.status.quarantined_checkpoints)]
    return {
        "job": job.name,
        "namespace": job.namespace,
        "folder": job.status.checkpoint_dir,
        "checkpoints": found + bad,
    }


def _print(job: TrainingJob, listed: Sequence[CheckpointStatus], checks: Sequence[Check]) -> None:
    now, status = datetime.now(UTC), job.status
    rows = [_row(each, now, _state(index, checks)) for index, each in enumerate(listed)]
    for each in reversed(status.quarantined_checkpoints):
        state = f"quarantined: {each.reason}"
        rows.append((str(each.step), "-", "-", _attempt(each.attempt), "-", "-", state, each.path))
    if not rows:
        where = f"; it keeps them in {status.checkpoint_dir}" if status.checkpoint_dir else ""
        note(f"job '{job.name}' has no confirmed checkpoint{where}")
        return
    print_table(HEADERS, rows, OPTIONAL)
    for index, check in enumerate(checks):
        if check.problem:
            say(f"step {listed[index].step}: {check.problem}")
    for each in reversed(status.quarantined_checkpoints):
        say(f"step {each.step} {_quarantined(each.time, now)}: {each.message}")
    if listed and not checks:
        removed = "the program may have removed older ones (`keep`); " if len(listed) > 1 else ""
        note(f"{removed}to see which are intact: {prefix()} checkpoints {job.name} --verify")


def _quarantined(time: datetime | None, now: datetime) -> str:
    return f"was quarantined {age(time, now)} ago" if time is not None else "is quarantined"


def _row(each: CheckpointStatus, now: datetime, state: str) -> tuple[str, ...]:
    return (
        str(each.step),
        size(each.bytes) if each.bytes is not None else "-",
        str(each.shards) if each.shards is not None else "-",
        _attempt(each.attempt),
        f"{age(each.time, now)} ago" if each.time is not None else "-",
        f"{age(each.verified_time, now)} ago" if each.verified_time is not None else "-",
        state,
        each.path,
    )


def _attempt(number: int) -> str:
    return str(number) if number else "other job"


def _state(index: int, checks: Sequence[Check]) -> str:
    if index < len(checks):
        check = checks[index]
        if check.reason == GONE and not check.problem:
            return "removed"
        return check.reason.lower() or "intact"
    return "next" if index == 0 else "confirmed"
