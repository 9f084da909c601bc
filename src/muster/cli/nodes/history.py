"""`muster nodes history`: shows a node's findings, its remediation, its tests, and the job failures that it caused."""

from __future__ import annotations

import asyncio
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click
import msgspec

from muster.api.visible import visible
from muster.cli.errors import CliError, ExitCode
from muster.cli.names import node_argument
from muster.cli.output import duration, note, output_option, print_data
from muster.cli.target import Target, cluster_options, resolve

if TYPE_CHECKING:
    from muster.api.node_remediation import NodeRemediation
    from muster.api.preflight import Preflight
    from muster.api.training_job import TrainingJob
    from muster.cli.target import Cluster
    from muster.kube.client import Client


_WIDE: Final = 100
_NARROW: Final = 70
"""On terminals with fewer columns, the texts are hardly indented."""
_NBSP: Final = "\N{NO-BREAK SPACE}"


class Entry(msgspec.Struct, frozen=True, rename="camel"):
    """An event in the history of a node.

    Attributes:
        what: the kind, for scripts: a rung of the ladder, Found, Asked, Tested or Job.
        session: the NodeRemediation that recorded it, if any.
        stages: the stages that ended, and their durations in seconds. They are stages of the ladder
            (`stage_of` in `fleet/remediation/ladder/states.py`), or all stages of a job's recovery.
    """

    time: datetime
    what: str
    text: str
    session: str = ""
    stages: Mapping[str, float] = {}


@click.command()
@node_argument()
@output_option("json", "yaml")
@cluster_options()
def command(name: str, output: str, target: Target) -> int:
    """Show the history of NODE, oldest first.

    It consists of findings, steps of its remediation, tests, and the job failures that it caused.
    """
    entries = asyncio.run(_read(resolve(target), name))
    if output:
        print_data({"node": name, "history": msgspec.to_builtins(entries)}, output)
        return ExitCode.DONE
    if not entries:
        note(f"nothing is written down about node '{name}'")
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    for entry in entries:
        for line in _lines(entry, room):
            click.echo(visible(line))
    return ExitCode.DONE


def _lines(entry: Entry, room: int) -> Iterator[str]:
    """Yield the lines of an entry, wrapped to this many columns; 0 wraps nothing."""
    began = f"{entry.time.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}  "
    head = f"{began}{entry.what:<10}  "
    indent = " " * (len(head) if not room or room >= _WIDE else len(began) if room >= _NARROW else 4)
    # A stage and its time are kept on one line.
    took = [f"{stage}{_NBSP}{_seconds(each)}" for stage, each in entry.stages.items()]
    texts = [entry.text, ", ".join(took)]
    if len(took) < 2:
        texts = [" ".join([entry.text, *(f"({each.replace(_NBSP, ' after ')})" for each in took)])]
    for number, text in enumerate(texts):
        before = head if number == 0 else indent
        lines = [f"{before}{text}"]
        if room:
            lines = textwrap.wrap(text, room, initial_indent=before, subsequent_indent=indent, break_on_hyphens=False)
        yield from (line.replace(_NBSP, " ") for line in lines)


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}s" if seconds < 100 else duration(seconds)


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
    from muster.kube.objects.node import Node

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
        for number, step in enumerate(session.status.history, 1):
            yield Entry(step.time, step.rung, step.reason, session.name, _ended(session, number))


def _ended(session: NodeRemediation, number: int) -> Mapping[str, float]:
    """Return the stage of the ladder that the entry with this index ended."""
    from muster.fleet.remediation.ladder.states import stage_of

    history = session.status.history[:number]
    state = "Released" if history[-1].event == "Released" else "Open"
    then = msgspec.structs.replace(session.status, history=history, state=state)
    stage = stage_of(session, then)
    return dict([stage]) if stage is not None else {}


def _of_tests(tests: Sequence[Preflight]) -> Iterator[Entry]:
    for test in tests:
        spec = test.spec
        first = f": {spec.failures[0].test}: {spec.failures[0].message}" if spec.failures else ""
        yield Entry(spec.time, "Tested", f"level {spec.level} {'passed' if spec.passed else 'failed'}{first}")


def _of_jobs(jobs: Sequence[TrainingJob], name: str) -> Iterator[Entry]:
    """Yield each fault of a job on the node, with its time to useful if that is known."""
    from muster.cli.jobs.describe import fault_headline, stages, time_to_useful_s

    for job in jobs:
        for fault in job.status.faults:
            if fault.node != name or fault.timeline is None or fault.timeline.fault is None:
                continue
            took = time_to_useful_s(fault)
            useful = f"useful again after {_seconds(took)}" if took is not None else "not useful again yet"
            text = f"{job.namespace}/{job.name}: {fault_headline(fault)}; {useful}"
            yield Entry(fault.timeline.fault, "Job", text, stages=dict(stages(fault.timeline)))
