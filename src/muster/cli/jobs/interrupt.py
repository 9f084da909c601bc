"""Ctrl-C in a command that watches a job: the command ends, and the job runs on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import click

from muster.cli.errors import ExitCode
from muster.cli.output import note


@contextlib.contextmanager
def detachable(name: str, prefix: str, again: str = "status {} --follow") -> Iterator[None]:
    """End the command on Ctrl-C within this block, and print how to watch or stop the job; exit status 130."""
    try:
        yield
    except (KeyboardInterrupt, asyncio.CancelledError):  # asyncio.run turns CancelledError into KeyboardInterrupt
        note(f"\nstopped watching; '{name}' continues")
        note(f"watch again: {prefix} {again.format(name)}; stop it: {prefix} stop {name}")
        raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None
