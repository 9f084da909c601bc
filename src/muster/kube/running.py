"""What processes share: signals that stop them, their log, where they listen, and their tasks until they stop."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from muster.kube.errors import ConfigError
from muster.kube.progress import Progress

STOP_S: Final = 10.0
"""Time for cancelled tasks to end."""
_MARK_S: Final = 5.0
_LATE_S: Final = 60.0

log = logging.getLogger(__name__)


def log_to_stderr(level: str = "info") -> None:
    """Write the log of this process to stderr: `debug`, `info` or `warning` and above."""
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )


def stop_on_signals(stop: asyncio.Event | None = None) -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set. Call it in the event loop.

    SIGHUP sets it only if it came because the terminal in which the process was started has gone. Without a terminal
    it is a request to read files again. All processes do that without a signal, so then it changes nothing.

    Args:
        stop: the event; None for a new one.
    """
    found = stop or asyncio.Event()
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup
    in_terminal = not ignored and _has_terminal()

    def hang_up() -> None:
        if in_terminal and not _has_terminal():
            found.set()
        else:
            log.info("SIGHUP is ignored: files that may change while this process runs are read again without it")

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, found.set)
    loop.add_signal_handler(signal.SIGHUP, hang_up)
    return found


def _has_terminal() -> bool:
    """Return whether this process has a controlling terminal. The kernel removes one that has gone before SIGHUP."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True


@contextmanager
def listening(option: str, host: str, port: int) -> Iterator[None]:
    """Say which option to change if the address cannot be used. Raises ConfigError."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}; choose another {option}") from error


async def mark_loop(progress: Progress, loop: str) -> None:
    """Mark for ever that the event loop runs: while it is blocked, nothing else runs."""
    progress.expect(loop, _LATE_S)
    while True:
        progress.mark(loop)
        await asyncio.sleep(_MARK_S)


async def run_until(stop: asyncio.Event, works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run all tasks until `stop`. If one ends before, the others are cancelled, and its error is raised."""
    tasks = [asyncio.create_task(work) for work in works]
    stopped = asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (*tasks, stopped):
            task.cancel()
        await asyncio.wait([*tasks, stopped], timeout=STOP_S)
