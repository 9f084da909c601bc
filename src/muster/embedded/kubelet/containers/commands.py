"""Short commands inside a container, for hooks and probes."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence

from muster.embedded.kubelet.containers.process import Process, StartError
from muster.embedded.kubelet.containers.running import RunningContainer

_MOST_BYTES = 10240  # how much of a probe's output the kubelet keeps


class CommandError(Exception):
    """A command could not be run, or did not end in time."""


async def run_command(runner: RunningContainer, argv: Sequence[str], timeout_s: float | None) -> tuple[int, str]:
    """Run `argv` in the container; returns its exit code and the beginning of its output; raises CommandError."""
    if runner.launched is None or runner.process is None:
        raise CommandError("the container is not running")
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as nothing:
        stdio = (nothing.fileno(), output.fileno(), output.fileno())
        try:
            process = await Process.start(runner.launched.command_spec(argv, stdio))
        except StartError as error:
            raise CommandError(str(error)) from error
        runner.sessions.add(process)
        try:
            async with asyncio.timeout(timeout_s):
                exited = await asyncio.shield(process.exited)
        except TimeoutError:
            raise CommandError(f"command {' '.join(argv)!r} timed out after {timeout_s:g}s") from None
        finally:
            process.kill()
            runner.sessions.discard(process)
        output.seek(0)
        return exited.code, output.read(_MOST_BYTES).decode(errors="replace")
