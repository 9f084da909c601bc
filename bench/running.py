"""Running a bench that starts control planes: what an interruption keeps, and what is said where none can be had."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable

import uvloop
from rich.console import Console

from muster.controlplane.goprograms import NotBuiltError
from muster.controlplane.programs import ControlPlaneUnavailableError


def interrupted(name: str, out: Console, measure: Callable[[], Awaitable[None]]) -> bool:
    """Run `measure` to its end, or until SIGINT or SIGTERM cancels it; returns whether one did.

    Exits with 3 where the control plane is not built or does not start.
    """

    async def run() -> None:
        task = asyncio.current_task()
        assert task is not None
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        await measure()

    try:
        uvloop.run(run())
    except asyncio.CancelledError:
        out.print("interrupted: the report holds what was measured until now")
        return True
    except (ControlPlaneUnavailableError, NotBuiltError) as error:
        out.print(f"bench.{name}: {error}")
        sys.exit(3)
    return False
