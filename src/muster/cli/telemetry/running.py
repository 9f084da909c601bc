"""What commands about telemetry share: running requests, the current stage, the cores of this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final, TypeVar

from muster.cli.errors import CliError, ExitCode
from muster.cli.telemetry.server_options import from_prometheus_error

T = TypeVar("T")

_EVERY_S: Final = 2.0


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run requests to a server. SIGTERM and SIGHUP end them as Ctrl-C does, so that they can clean up.

    Raises CliError instead of PrometheusError.
    """
    from muster.telemetry.prometheus.errors import PrometheusError

    async def interruptible() -> T:
        task = asyncio.ensure_future(work)
        for number in (signal.SIGTERM, signal.SIGHUP):
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await task

    try:
        return asyncio.run(interruptible())
    except PrometheusError as error:
        raise from_prometheus_error(error) from error
    except asyncio.CancelledError:
        raise CliError("interrupted", exit_code=ExitCode.INTERRUPTED) from None


@contextlib.contextmanager
def stages(what: str, output: str) -> Iterator[Callable[[str], None]]:
    """Show the current stage of a wait once it takes longer than two seconds. Output for scripts has none."""
    from muster.cli.local.up import waiting

    if output:
        yield lambda stage: None
        return
    shown_s = time.monotonic()
    with waiting(what) as show:

        def stage(text: str) -> None:
            nonlocal shown_s
            if time.monotonic() - shown_s >= _EVERY_S:
                shown_s = time.monotonic()
                show(text)

        yield stage


def cores_here() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
