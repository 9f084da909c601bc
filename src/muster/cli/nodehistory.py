"""`muster nodes history`: what was found on a node, what was done about it, and what became of the jobs it had."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click
import msgspec

from muster.cli.errors import CliError, ExitCode
from muster.cli.output import duration, note, output_option, print_data
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.api.node_remediation import NodeRemediation
    from muster.api.preflight import Preflight
    from muster.api.training_job import TrainingJob
    from muster.cli.target import Cluster
    from muster.kube.client import Client


class Entry(msgspec.Struct, frozen=True, rename="camel"):
    """Something that happened to the node. `what` is for scripts: a rung of the ladder, Found, Asked, Tested or Job."""

    time: datetime
    what: str
    text: str
    session: str = ""


@click.command()
@click.argument("name", metavar="NODE")
@output_option("json", "yaml")
@cluster_options()
def command(name: str, output: str, target: Target) -> int:
    """Say what happened to NODE, oldest first: findings, each rung of its remediation, tests, and jobs it failed."""
    entries = asyncio.run(_read(resolve(target), name))
    if output:
        print_data({"node": name, "history": msgspec.to_builtins(entries)}, output)
        return ExitCode.DONE
    if not entries:
        note(f"nothing is written down about node '{name}'")
    for entry in entries:
        click.echo(f"{entry.time.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}  {entry.what:<10}  {entry.text}")
    return ExitCode.DONE


async def _read(cluster: Cluster, name: str) -> Sequence[Entry]:
    from muster.api.node_remediation import NodeRemediation
    from muster.api.preflight import Preflight
    from muster.api.training_job import TrainingJob
    from muster.kube.errors import NotFound

    async with cluster.client() as client:
        sessions, jobs = await asyncio.gather(client.list_all(NodeRemediation), client.list_all(TrainingJob))
        tests: list[Preflight] = []
        try:
            tests = [await client.get(Preflight, name)]
        except NotFound:
            if not any(each.spec.node == name for each in sessions.items):
                await _must_exist(client, name)
    mine = [each for each in sessions.items if each.spec.node == name]
    return sorted([*_of_sessions(mine), *_of_tests(tests), *_of_jobs(jobs.items, name)], key=lambda each: each.time)


async def _must_exist(client: Client, name: str) -> None:
    from muster.kube.errors import NotFound
    from muster.kube.node import Node

    try:
        await client.get(Node, name)
    except NotFound:
        raise CliError(f"no node '{name}'", "kubectl get nodes lists them", ExitCode.NOT_FOUND) from None


def _of_sessions(sessions: Sequence[NodeRemediation]) -> Iterator[Entry]:
    for session in sessions:
        for seen in session.spec.cause:
            times = f", {seen.count:,} times" if seen.count > 1 else ""
            on = f" on {seen.component}" if seen.component else ""
            said = f": {seen.message}" if seen.message else ""
            yield Entry(seen.first_time, "Found", f"{seen.check} {seen.code}{on}{times}{said}", session.name)
        if (asked := session.spec.request) is not None:
            yield Entry(asked.time, "Asked", f"{asked.action.lower()} by {asked.by}: {asked.reason}", session.name)
        for step in session.status.history:
            yield Entry(step.time, step.rung, step.reason, session.name)


def _of_tests(tests: Sequence[Preflight]) -> Iterator[Entry]:
    for test in tests:
        spec = test.spec
        first = f": {spec.failures[0].test}: {spec.failures[0].message}" if spec.failures else ""
        yield Entry(spec.time, "Tested", f"level {spec.level} {'passed' if spec.passed else 'failed'}{first}")


def _of_jobs(jobs: Sequence[TrainingJob], name: str) -> Iterator[Entry]:
    """What the node cost jobs: each fault with its time to useful, as far as that is over."""
    from muster.cli.describe import fault_headline, stages, time_to_useful_s

    for job in jobs:
        for fault in job.status.faults:
            if fault.node != name or fault.timeline is None or fault.timeline.fault is None:
                continue
            took = time_to_useful_s(fault)
            parts = ", ".join(f"{stage} {duration(seconds)}" for stage, seconds in stages(fault.timeline))
            useful = (
                f"; useful again after {duration(took)} ({parts})" if took is not None else "; not useful again yet"
            )
            text = f"{job.namespace}/{job.name}: {fault_headline(fault)}{useful}"
            yield Entry(fault.timeline.fault, "Job", text)
