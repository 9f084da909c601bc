"""Names of jobs for shell completion, from the cluster that the command would use."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from muster.cli.names import object_names

if TYPE_CHECKING:
    from muster.api.training_job import TrainingJob
    from muster.cli.target import Target

DEADLINE_S = 1.5
JOB_NAMES = object_names("job", "muster list shows the jobs of a namespace")


def job_argument(name: str = "name", **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a click argument for the name of a job, with a check and shell completion."""
    return click.argument(name, shell_complete=job_names, callback=JOB_NAMES, **options)


def job_names(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the jobs whose names begin with the text, each with its phase. Empty if no cluster answers in time."""
    from muster.cli.target import Target

    given = context.params
    target = Target(
        given.get("kubeconfig") or "",
        given.get("context") or "",
        bool(given.get("embedded")),
        given.get("namespace") or "",
    )
    value = given.get(parameter.name or "")
    named = value if isinstance(value, tuple) else ()
    jobs: list[TrainingJob] = []
    with _deadline(), contextlib.suppress(Exception):  # completion must not print errors
        jobs = asyncio.run(_jobs(target))
    return [
        CompletionItem(job.name, help=job.status.phase)
        for job in jobs
        if job.name.startswith(incomplete) and job.name not in named
    ]


async def _jobs(target: Target) -> list[TrainingJob]:
    from muster.api.training_job import TrainingJob
    from muster.cli.target import resolve

    cluster = resolve(target)
    async with cluster.client() as client:
        return (await client.list(TrainingJob, cluster.namespace)).items


@contextlib.contextmanager
def _deadline() -> Iterator[None]:
    """If the block takes longer than `DEADLINE_S`, end the process, without output.

    A timeout inside the process would not help, because a DNS lookup cannot be cancelled.
    """
    before = signal.signal(signal.SIGALRM, lambda number, frame: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, DEADLINE_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
