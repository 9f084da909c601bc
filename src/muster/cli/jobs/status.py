"""`muster status`: shows one job."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from muster.api.words import counted
from muster.cli.errors import ExitCode
from muster.cli.jobs.job_names import job_argument
from muster.cli.jobs.pods import slot_of, state_of
from muster.cli.jobs.wait_timeout import check_waits, not_ended, timeout_option, within
from muster.cli.output import age, output_option, paint, phase, print_data, print_table, say, say_command
from muster.cli.program import prefix
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.api.training_job import TrainingJob
    from muster.cli.target import Cluster
    from muster.kube.objects.pod import Pod

SLOTS_SHOWN = 32
_LABEL_WIDTH = 13


@click.command()
@job_argument()
@click.option("--follow", "-f", is_flag=True, help="Watch the job until it ends; exit with its result.")
@timeout_option("--follow")
@output_option("json", "yaml")
@cluster_options()
def command(name: str, follow: bool, timeout_s: int | None, output: str, target: Target) -> int:
    """Show the job NAME: attempt, slots and nodes, faults and their causes, what to do next."""
    check_waits(timeout_s, follow, "--follow")
    return asyncio.run(_status(resolve(target), name, follow, timeout_s, output))


async def _status(cluster: Cluster, name: str, follow: bool, timeout_s: int | None, output: str) -> int:
    from muster.cli.jobs.borrowed import borrowed_text, lenders
    from muster.cli.jobs.describe import as_data
    from muster.cli.jobs.follow import follow as follow_job
    from muster.cli.jobs.follow import report_end
    from muster.cli.jobs.interrupt import detachable
    from muster.cli.jobs.pods import members
    from muster.cli.jobs.untaken import warning
    from muster.cli.jobs.watch import get_job

    async with cluster.client() as client:
        job = await get_job(client, cluster.namespace, name)
        if follow:
            with detachable(name, prefix()):
                async with within(timeout_s, *not_ended(name)):
                    ended = await follow_job(client, cluster.namespace, name, stdout_is_data=bool(output))
            if output:
                print_data(as_data(ended), output)
            return report_end(ended)
        if output:
            print_data(as_data(job), output)
            return ExitCode.DONE
        pods = await members(client, job)
        borrowed = borrowed_text(await lenders(client, pods)) if job.spec.borrow else ""
        now = datetime.now(UTC)
        print_status(job, pods, now, borrowed=borrowed, untaken=await warning(client, job, now))
    return ExitCode.DONE


def print_status(job: TrainingJob, pods: list[Pod], now: datetime, *, borrowed: str = "", untaken: str = "") -> None:
    """Print a job for people.

    Args:
        job: what to print.
        pods: its pods.
        now: the time for ages.
        borrowed: the owners of its nodes, if it borrows.
        untaken: why no controller has taken it; "" if one has.
    """
    from muster.cli.jobs import describe

    spec, status = job.spec, job.status
    gpus = f" x {job.gpus} {spec.gpu_resource}" if job.gpus else ""
    fields = [
        ("Name", f"{job.name}  (namespace {job.namespace})"),
        ("Phase", f"{phase(status.phase)}: {untaken}" if untaken else _phase(job, pods)),
        (
            "Asked for",
            f"{counted(spec.replicas, 'node')}{gpus}, {counted(job.ranks, 'rank')} each, launcher {spec.launcher}",
        ),
        ("Attempt", f"{describe.attempt(job)}, {describe.slots_text(job)}"),
        ("Starts", describe.start_text(job, now)),
        ("Borrows", borrowed),
        ("Backfilled", describe.backfill_text(job)),
        ("Progress", describe.progress_text(job, now)),
        ("Stalled", _indented(describe.stall_text(job, now))),
        ("Not running", _indented("\n".join(describe.idle_ranks(job)))),
        ("Checkpoint", _checkpoint(job, now)),
        ("Restarts", describe.restarts_text(job)),
        ("Created", describe.times_text(job, now)),
    ]
    for label, value in fields:
        if value:
            head = f"{paint(label + ':', bold=True)}{' ' * (_LABEL_WIDTH - 1 - len(label))}"
            if label == "Phase":
                head, value = head + phase(status.phase), value.removeprefix(status.phase)
            say(value, head=head, hang=_LABEL_WIDTH)
    if pods:
        click.echo()
        rows = [_slot(pod) for pod in pods]
        print_table(("SLOT", "NODE", "POD", "SINCE ATTEMPT", "STATE"), rows[:SLOTS_SHOWN], ("SINCE ATTEMPT",))
        left = Counter(row[-1] for row in rows[SLOTS_SHOWN:])
        for state, count in left.most_common():
            say(f"and {count} more: {state}")
    for number, fault in enumerate(describe.newest_first(status.faults)):
        click.echo()
        headline = f" {age(fault.time, now)} ago: {describe.fault_headline(fault)}"
        say(headline, head=paint("Fault", "red", bold=True), hang=2)
        over = number > 0 or describe.finished(job)
        for line in describe.fault_details(fault, final=number == 0 and describe.never_came(job), over=over):
            say(line, head="  ")
    click.echo()
    click.echo(paint("Next:", bold=True))
    for line in describe.next_steps(job, prefix(), behind=_behind(job, pods)):
        say_command(line)


def _phase(job: TrainingJob, pods: list[Pod]) -> str:
    """Phase and message. If a fault below repeats the message, only its first line."""
    status = job.status
    first, *rest = status.message.splitlines() or [""]
    lines = [status.phase + (f": {first}" if first else "")]
    if _behind(job, pods):
        lines[0] += " (pods have failed; the controller has not acted on it yet)"
    if not status.faults:
        lines += rest
    return "\n".join(lines)


def _indented(text: str) -> str:
    return text.replace("\n", f"\n{' ' * _LABEL_WIDTH}")


def _behind(job: TrainingJob, pods: list[Pod]) -> bool:
    """Returns whether pods of the current attempt have failed while the status still reports running ranks."""
    newest = {slot_of(pod): pod for pod in pods}  # by age within a slot: an attempt keeps the pods of earlier ones
    return job.status.phase in ("Starting", "Running") and any(pod.status.phase == "Failed" for pod in newest.values())


def _checkpoint(job: TrainingJob, now: datetime) -> str:
    checkpoint = job.status.last_checkpoint
    if checkpoint is None:
        return ""
    since = f", {age(checkpoint.time, now)} ago" if checkpoint.time is not None else ""  # another job's has no time
    return f"step {checkpoint.step}{since}: {checkpoint.path}"


def _slot(pod: Pod) -> tuple[str, ...]:
    attempt = pod.metadata.annotations.get("muster.dev/attempt", "-")
    return (str(slot_of(pod)), pod.spec.node_name or "-", pod.name, attempt, state_of(pod))
