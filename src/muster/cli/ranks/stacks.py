"""`muster stacks`: shows the stacks of a job's ranks, grouped by equal stack."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from muster.api.visible import visible
from muster.cli.errors import CliError, ExitCode
from muster.cli.jobs.job_names import job_argument
from muster.cli.output import note, output_option, paint, print_data
from muster.cli.program import prefix
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.cli.target import Cluster
    from muster.kube.client import Client
    from muster.kube.objects.pod import Pod

PODS_AT_ONCE = 16
DEADLINE_S = 60.0


@click.command()
@job_argument()
@click.option("--rank", type=click.IntRange(0), help="This rank only.")
@click.option("--threads", is_flag=True, help="All threads, not only the main thread.")
@output_option("json")
@cluster_options()
def command(name: str, rank: int | None, threads: bool, output: str, target: Target) -> int:
    """Show the stacks of the ranks of the job NAME, grouped by equal stack.

    A rank in Python writes its stacks when its supervisor asks for them. For other ranks py-spy reads them, if the
    image has py-spy and the kernel allows it. Otherwise the command shows in which kernel function the process waits,
    and why it cannot show more. It needs the verbs get and create on pods/exec, as `muster exec` does.
    """
    return asyncio.run(_stacks(resolve(target), name, rank, threads, output))


async def _stacks(cluster: Cluster, name: str, rank: int | None, threads: bool, output: str) -> int:
    from muster.cli.jobs.pods import attempt_of, members, slot_of
    from muster.cli.jobs.watch import get_job

    async with cluster.client() as client:
        job = await get_job(client, cluster.namespace, name)
        if job.status.phase in ("Succeeded", "Failed"):
            hint = f"what its ranks wrote: {prefix()} logs {name}"
            raise CliError(f"'{name}' has ended, so its ranks have no stacks", hint, ExitCode.CONFLICT)
        pods = {slot_of(pod): pod for pod in sorted(await members(client, job), key=attempt_of)}
        limit = asyncio.Semaphore(PODS_AT_ONCE)
        answers = await asyncio.gather(*(_ask(client, pods[slot], slot, rank, limit) for slot in sorted(pods)))
    ranks = sorted((each for found, _ in answers for each in found), key=lambda each: (each["rank"], each["pid"]))
    problems = [problem for _, problem in answers if problem]
    if output:
        print_data({"ranks": ranks, "problems": problems}, output)
    else:
        for line in report(ranks, job.ranks * (job.status.size or job.spec.replicas), threads=threads):
            click.echo(line)
        for problem in problems:
            note(problem)
    if ranks:
        return ExitCode.DONE
    if problems:
        raise CliError(f"no stack of '{name}' could be read", exit_code=ExitCode.FAILED)
    which = "no ranks run" if rank is None else f"rank {rank} does not run"
    raise CliError(f"{which} in '{name}' now", f"{prefix()} status {name} shows what it does", ExitCode.NOT_FOUND)


async def _ask(
    client: Client, pod: Pod, slot: int, rank: int | None, limit: asyncio.Semaphore
) -> tuple[list[dict[str, Any]], str]:
    """Returns the answers of a pod's ranks, and for missing answers the reason."""
    from muster.api.names import SUPERVISOR_DIRECTORY
    from muster.cli.ranks.remote import NotAllowed, capture
    from muster.kube.errors import ApiError

    more = [] if rank is None else ["--rank", str(rank)]
    try:
        async with limit, asyncio.timeout(DEADLINE_S):
            code, out = await capture(
                client, pod, ["python3", f"{SUPERVISOR_DIRECTORY}/supervisor.py", "stacks", *more]
            )
    except NotAllowed:
        raise
    except (ApiError, CliError) as error:
        return [], f"slot {slot}: {error.message}"
    except TimeoutError:
        return [], f"slot {slot}: no answer within {DEADLINE_S:.0f} s"
    if code == 2:
        return [], f"slot {slot}: its supervisor is of an earlier version and cannot collect stacks"
    lines = [line for line in out.decode("utf-8", "replace").splitlines() if line.startswith("{")]
    found = [{**json.loads(line), "slot": slot, "node": pod.spec.node_name} for line in lines]
    return found, "" if code == 0 else f"slot {slot}: the supervisor's command ended with exit code {code}"


def report(ranks: Sequence[dict[str, Any]], world_size: int, *, threads: bool = False) -> list[str]:
    """Yield the report: groups of ranks with equal stacks, the largest group first. The job has `world_size` ranks.

    Stacks contain text of the program, such as file names. It is escaped here.
    """
    groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
    for each in ranks:
        shown = each["threads"] if threads else each["threads"][:1]
        key = (each["why"], each["state"] if each["source"] == "proc" else "", tuple(map(tuple, shown)))
        groups.setdefault(key, []).append(each)
    lines: list[str] = []
    for (why, _, stacks), group in sorted(groups.items(), key=lambda item: (-len(item[1]), item[1][0]["rank"])):
        first = group[0]
        where = f" (slot {first['slot']} on {first['node']}, process {first['pid']})" if len(group) == 1 else ""
        numbers = sorted({each["rank"] for each in group})
        head = f"{'rank' if len(numbers) == 1 else 'ranks'} {_ranges(numbers)} of {world_size}"
        lines.append(paint(visible(f"{head}{where}, by {first['source']}"), bold=True))
        lines += [f"  {visible(first['why'])}"] if why else []
        for number, stack in enumerate(stacks):  # type: ignore[arg-type, var-annotated]
            lines += ["  thread:"] if number else []
            lines += [f"  {visible(line)}" for line in stack]
        lines.append("")
    return lines[:-1]


def _ranges(numbers: Sequence[int]) -> str:
    """`0, 2-5`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)
