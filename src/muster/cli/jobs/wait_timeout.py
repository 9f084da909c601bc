"""The option `--timeout` of commands that wait for a job. Without it they wait without a limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import click

from muster.cli.errors import BadInput, CliError, ExitCode
from muster.cli.program import prefix


def _in_seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Read a length of time; a click callback."""
    from muster.cli.jobs.manifest import seconds

    return seconds(value) if value is not None else None


def timeout_option(*waiting: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--timeout`, which gives `timeout_s`, to a command that waits with one of the flags `waiting`."""
    return click.option(
        "--timeout",
        "timeout_s",
        metavar="TIME",
        callback=_in_seconds,
        help=f"With {' or '.join(waiting)}: exit with 6 after this long, such as 90s or 2h [no limit].",
    )


def check_waits(timeout_s: int | None, waits: bool, *waiting: str) -> None:
    """Raise BadInput if `--timeout` is given without a flag that waits."""
    if timeout_s is not None and not waits:
        raise BadInput(f"--timeout limits a wait: add {' or '.join(waiting)}", "or leave out --timeout")


def not_ended(name: str) -> tuple[str, str]:
    """Return message and hint for a job that did not end in time."""
    return f"'{name}' has not ended", f"it continues; watch it: {prefix()} status {name} --follow"


@asynccontextmanager
async def within(timeout_s: float | None, what: str, hint: str) -> AsyncIterator[None]:
    """Limit the block to this many seconds; None means no limit.

    Raises:
        CliError: it took longer; the message is "`what` after N s", the exit status 6.
    """
    try:
        async with asyncio.timeout(timeout_s) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise CliError(f"{what} after {timeout_s:g} s", hint, ExitCode.TIMED_OUT) from None
