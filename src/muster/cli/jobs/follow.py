"""Shows a job while it runs: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from muster.api.training_job import TrainingJob
from muster.api.visible import visible
from muster.cli.errors import CliError
from muster.cli.jobs import describe
from muster.cli.jobs.untaken import wait_until_late
from muster.cli.jobs.watch import job_states
from muster.cli.output import PHASE_COLORS, colored, console, fitted, interactive, note
from muster.cli.ranks.logs import labelled, print_lines

if TYPE_CHECKING:
    from rich.console import RenderableType

    from muster.kube.client import Client

PLAIN_PROGRESS_EVERY_S = 5.0
_BAR_WIDTH = 40
_LAST_OUTPUT_S = 20.0


class JobView:
    """Prints the events of a job. On a terminal, past events stay, and the current state is redrawn below them.

    If stdout is not a terminal, nothing is redrawn: progress is a line every few seconds.
    """

    def __init__(self, *, stdout_is_data: bool = False) -> None:
        """Use a live display if stdout is a terminal. With `stdout_is_data`, print plain lines on stderr."""
        self._live: Any = None
        self._wanted = interactive() and not stdout_is_data
        self._to_stderr = stdout_is_data
        self._job: TrainingJob | None = None
        self._below: RenderableType | None = None
        self._last_progress = 0.0
        self._last_shown: object = None
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        """Start drawing."""
        if self._wanted:
            from rich.live import Live

            self._live = Live(console=console(), refresh_per_second=8, transient=True)
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing and restore the terminal."""
        if self._live:
            self._live.__exit__(kind, error, trace)
            self._live = None

    def say(self, line: str) -> None:
        """Print a line that stays, with the time since the start."""
        stamp = f"{time.monotonic() - self._started:6.1f}s  "
        stream = sys.stderr if self._to_stderr else sys.stdout
        first, *rest = fitted(visible(line), indent=len(stamp), stream=stream)
        stamped = "\n".join([stamp + first, *(" " * len(stamp) + more for more in rest)])
        if self._live:
            self._live.console.print(stamped, markup=False)
        else:
            click.echo(stamped, err=self._to_stderr)

    def output(self, slot: int, texts: Sequence[str]) -> None:
        """Print lines that the ranks of a slot wrote; they stay."""
        width = len(str(self._job.spec.replicas - 1)) if self._job else 1
        if self._live:
            from rich.text import Text

            shown = "\n".join(labelled(slot, width, texts, colored()))
            self._live.console.print(Text.from_ansi(shown), overflow="fold")
        else:
            print_lines(slot, width, texts, err=self._to_stderr)

    @property
    def live(self) -> bool:
        """Returns whether the display redraws anything."""
        return self._live is not None

    @property
    def width(self) -> int:
        """The width of the display in columns."""
        return int(self._live.console.width) if self._live else 0

    def below(self, more: RenderableType) -> None:
        """Set what is shown below the job."""
        self._below = more
        self._draw()

    def _draw(self) -> None:
        if self._live and self._job:
            from rich.console import Group

            parts = [_Now(self._job)] if self._below is None else [_Now(self._job), "", self._below]
            self._live.update(Group(*parts))

    def waiting(self, what: str) -> None:
        """Show what the command waits for; used before the job exists."""
        if self._live:
            from rich.spinner import Spinner

            self._live.update(Spinner("dots", text=what))

    def show(self, job: TrainingJob) -> None:
        """Show a new state of the job."""
        for line in describe.events(self._job, job):
            if not (self._live and line.startswith("checkpoint ")):  # the live display shows progress itself
                self.say(line)
        self._job = job
        if self._live:
            self._draw()
            return
        progress, now = job.status.progress, time.monotonic()
        shown = (progress.step, progress.metrics) if progress is not None else None
        if progress and shown != self._last_shown and now - self._last_progress >= PLAIN_PROGRESS_EVERY_S:
            self._last_progress, self._last_shown = now, shown
            self.say(describe.progress_text(job))


class _Now:
    """A job as it is drawn at each refresh: ages grow while nothing else changes."""

    def __init__(self, job: TrainingJob) -> None:
        self._job = job

    def __rich__(self) -> RenderableType:
        return render(self._job)


def render(job: TrainingJob) -> RenderableType:
    """The live display: name, phase, attempt and slots; progress with its metrics; the last checkpoint."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    status = job.status
    head = Text.assemble(
        (job.name, "bold"),
        "  ",
        (status.phase, PHASE_COLORS.get(status.phase, "")),
        f"  attempt {describe.attempt(job)}  {describe.slots_text(job)}",
        f"  restarts {describe.restarts(job)}" if describe.restarts(job) else "",
    )
    parts: list[RenderableType] = [head]
    progress = status.progress
    if progress:
        row = Table.grid(padding=(0, 2))
        if progress.total_steps:
            row.add_row(
                ProgressBar(total=progress.total_steps, completed=progress.step, width=_BAR_WIDTH),
                describe.progress_text(job),
            )
        else:
            row.add_row(describe.progress_text(job))
        parts.append(row)
    troubles = [describe.stall_text(job).partition("\n")[0], *describe.idle_ranks(job)]
    parts += [Text(each, style="yellow") for each in troubles if each]
    if status.last_checkpoint:
        parts.append(Text(f"checkpoint at step {status.last_checkpoint.step}", style="dim"))
    return Group(*parts)


async def follow(
    client: Client, namespace: str, name: str, *, stdout_is_data: bool = False, output: bool = False
) -> TrainingJob:
    """Show a job until it has ended or is suspended; returns its last state.

    Args:
        client: how to reach the cluster.
        namespace: the job's namespace.
        name: the job's name.
        stdout_is_data: print on stderr.
        output: also show the output of the ranks.
    """
    with JobView(stdout_is_data=stdout_is_data) as view:
        watching = asyncio.create_task(_watch(client, namespace, name, view))
        reading = asyncio.create_task(_read_output(client, namespace, name, view)) if output else None
        warning = asyncio.create_task(_warn_if_untaken(client, namespace, name, view.say))
        try:
            await asyncio.wait({watching, *([reading] if reading else [])}, return_when=asyncio.FIRST_COMPLETED)
            if reading is not None and reading.done():
                reading.result()
            job = await watching
            if reading is not None and describe.finished(job):  # print the last output before the result
                await asyncio.wait({reading}, timeout=_LAST_OUTPUT_S)
                if reading.done():
                    reading.result()
            view.show(job)
            return job
        finally:
            for task in (watching, reading, warning):
                if task is not None:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)


async def _watch(client: Client, namespace: str, name: str, view: JobView) -> TrainingJob:
    async for job in job_states(client, namespace, name):
        if describe.finished(job) or (job.spec.suspend and job.status.phase == "Suspended"):
            return job
        view.show(job)
    raise AssertionError("job_states never ends by itself")


async def _read_output(client: Client, namespace: str, name: str, view: JobView) -> None:
    """Show the output of the ranks until the job ends. If the API server does not answer, only this part ends."""
    from muster.cli.ranks.log_stream import JobLogs, Selection
    from muster.kube.errors import ApiError

    try:
        job = await client.get(TrainingJob, name, namespace)
        await JobLogs(client=client, job=job, wanted=Selection(), sink=view.output).follow()
    except (ApiError, CliError) as error:
        view.say(f"the output of the ranks is not shown any more: {error}; muster logs {name} -f shows it")


async def wait(client: Client, namespace: str, name: str) -> TrainingJob:
    """Wait until a job has ended, and return its last state. Print only a warning if no controller takes the job."""
    warning = asyncio.create_task(_warn_if_untaken(client, namespace, name, note))
    try:
        async for job in job_states(client, namespace, name):
            if describe.finished(job):
                return job
    finally:
        warning.cancel()
        await asyncio.gather(warning, return_exceptions=True)
    raise AssertionError("job_states never ends by itself")


async def _warn_if_untaken(client: Client, namespace: str, name: str, say: Callable[[str], None]) -> None:
    """Warn once if no controller takes the job. Errors of the API server are ignored here: other tasks report them."""
    from muster.kube.errors import ApiError

    with contextlib.suppress(ApiError):
        late = await wait_until_late(client, namespace, name)
        if late:
            say(late)


def report_end(job: TrainingJob) -> int:
    """Print how a job ended, with the last lines of the rank that failed first. Returns the exit status."""
    status = job.status
    if status.phase == "Suspended":
        note(f"training job '{job.name}' is suspended; muster resume {job.name} continues it")
        return 0
    if status.phase == "Failed":
        said = status.message.splitlines()[:1] if status.faults else [status.message]  # the fault has the rest
        note(f"training job '{job.name}' failed: {''.join(said) or 'no message'}")
        for fault in status.faults[-1:]:
            note(describe.fault_headline(fault))
            for line in fault.message.splitlines():
                note(f"  {line}")
        note(f"everything the ranks wrote: muster logs {job.name}")
    return describe.exit_status(job)
