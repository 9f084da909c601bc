"""Showing a job while it runs: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from muster.api.training_job import TrainingJob
from muster.cli import describe
from muster.cli.errors import ExitCode
from muster.cli.output import PHASE_COLORS, console, interactive, note
from muster.cli.watch import job_states

if TYPE_CHECKING:
    from rich.console import RenderableType

    from muster.kube.client import Client

PLAIN_PROGRESS_EVERY_S = 5.0
_BAR_WIDTH = 40


class JobView:
    """Prints what happens to a job: what happened stays on the screen, where it stands is redrawn below.

    Where stdout is no terminal there is no redrawing: progress is a line every few seconds.
    """

    def __init__(self, *, stdout_is_data: bool = False) -> None:
        """Live where stdout is a terminal; with `stdout_is_data`, plain lines on stderr."""
        self._live: Any = None
        self._wanted = interactive() and not stdout_is_data
        self._to_stderr = stdout_is_data
        self._job: TrainingJob | None = None
        self._below: RenderableType | None = None
        self._last_progress = 0.0
        self._last_line = ""
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
        """Stop drawing and leave the terminal as it was."""
        if self._live:
            self._live.__exit__(kind, error, trace)
            self._live = None

    def say(self, line: str) -> None:
        """Print a line that stays, with the time since the start."""
        stamped = f"{time.monotonic() - self._started:6.1f}s  {line}"
        if self._live:
            self._live.console.print(stamped, markup=False)
        else:
            click.echo(stamped, err=self._to_stderr)

    @property
    def live(self) -> bool:
        """Whether anything is redrawn."""
        return self._live is not None

    @property
    def width(self) -> int:
        """Columns there are to draw in."""
        return int(self._live.console.width) if self._live else 0

    def below(self, more: RenderableType) -> None:
        """Show something below the job from now on."""
        self._below = more
        self._draw()

    def _draw(self) -> None:
        if self._live and self._job:
            from rich.console import Group

            parts = [render(self._job)] if self._below is None else [render(self._job), "", self._below]
            self._live.update(Group(*parts))

    def waiting(self, what: str) -> None:
        """Show what is being waited for while there is no job yet."""
        if self._live:
            from rich.spinner import Spinner

            self._live.update(Spinner("dots", text=what))

    def show(self, job: TrainingJob) -> None:
        """Show a new state of the job."""
        for line in describe.events(self._job, job):
            if not (self._live and line.startswith("checkpoint ")):  # the live display shows it anyway
                self.say(line)
        self._job = job
        if self._live:
            self._draw()
            return
        line = describe.progress_text(job)
        now = time.monotonic()
        if line and line != self._last_line and now - self._last_progress >= PLAIN_PROGRESS_EVERY_S:
            self._last_progress, self._last_line = now, line
            self.say(line)


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
    if status.last_checkpoint:
        parts.append(Text(f"checkpoint at step {status.last_checkpoint.step}", style="dim"))
    return Group(*parts)


async def follow(client: Client, namespace: str, name: str, *, stdout_is_data: bool = False) -> TrainingJob:
    """Show a job until it has ended or is suspended, on stderr with `stdout_is_data`; returns its last state."""
    with JobView(stdout_is_data=stdout_is_data) as view:
        async for job in job_states(client, namespace, name):
            view.show(job)
            if describe.finished(job) or (job.spec.suspend and job.status.phase == "Suspended"):
                return job
    raise AssertionError("job_states never ends by itself")


async def wait(client: Client, namespace: str, name: str) -> TrainingJob:
    """Wait, in silence, until a job has ended; returns its last state."""
    async for job in job_states(client, namespace, name):
        if describe.finished(job):
            return job
    raise AssertionError("job_states never ends by itself")


def report_end(job: TrainingJob) -> int:
    """Say how a job ended, with the last lines of what failed first; returns the exit status."""
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


@contextlib.contextmanager
def detachable(name: str, prefix: str, again: str = "status {} --follow") -> Iterator[None]:
    """Within the block Ctrl-C only stops watching: the job goes on, and the user is told how to stop it."""
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):  # asyncio.run turns the first into the second
        note(f"\nstopped watching; '{name}' goes on")
        note(f"watch again: {prefix} {again.format(name)}; stop it: {prefix} stop {name}")
        raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None
