"""Many watches, held open by tools/watchload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from muster.controlplane.goprograms import find_built

MARKER = "bench.muster.dev/sent"
"""The annotation with the time of a write in nanoseconds."""
_ANSWER_S = 900.0


class Seen(msgspec.Struct, frozen=True):
    """What the watches have seen since `begin`."""

    open: int
    events: int
    bytes: int
    ended: int
    reconnected: int
    last_ns: int
    lag_p50_ms: float
    lag_p99_ms: float
    cpu_s: float
    failure: str


class Load:
    """A running watchload."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    async def ask(self, command: str) -> Seen:
        """Send a command and return the answer. Raises RuntimeError if the program ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n".encode())
        async with asyncio.timeout(_ANSWER_S):
            line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("watchload ended; its message is above")
        return msgspec.json.decode(line, type=Seen)

    async def connect(self, count: int) -> Seen:
        """Open watches until there are `count`. Raises RuntimeError if one fails."""
        seen = await self.ask(f"connect {count}")
        if seen.failure or seen.open != count:
            raise RuntimeError(f"{seen.open} of {count} watches opened: {seen.failure}")
        return seen


@asynccontextmanager
async def watches(
    server: str, ca: Path | None, token: Path, path: str, accept: str, *, reconnect_s: float = 0.0
) -> AsyncIterator[Load]:
    """Start watchload; `path` may contain {n}."""
    program = find_built("watchload") / "watchload"
    arguments = [f"--server={server}", f"--token-file={token}", f"--path={path}", f"--accept={accept}"]
    arguments += [f"--marker={MARKER}", f"--reconnect={reconnect_s}s", "--buffer=4096"]
    if ca is not None:
        arguments.append(f"--ca={ca}")
    process = await asyncio.create_subprocess_exec(
        program, *arguments, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    try:
        yield Load(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
