"""Processes of containers: each runs below a shim, and ends together with all its descendants."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_SHIM = Path(__file__).with_name("shim.py")
# As a module, Python compiles it once; as a script, at each start.
_RUN_SHIM = "import os, sys; sys.path.append(os.path.dirname(sys.argv[1])); import shim; shim.main()"
_START_DEADLINE_S = 30.0
_HELPER_S = 30.0
_LINE_LIMIT_BYTES = 1 << 20


class StartError(Exception):
    """A program could not be run; the message is used in the container's status."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """The program that a shim runs.

    Attributes:
        argv: the program and its arguments.
        env: its whole environment.
        cwd: the folder it starts in.
        log: the log file, for containers.
        log_max_bytes, log_max_files: size of the log for rotation, and number of files.
        stdio: file descriptors for stdin, stdout and stderr instead of a log, for exec.
        tty: give it a new terminal (with `stdio`, that must be a terminal).
        cgroups: `cgroup.procs` files it joins.
        netns: the network namespace it enters; "" for none.
        uid, gid, groups: its user and groups; None: those of the kubelet.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    log: str | None = None
    log_max_bytes: int = 10 << 20
    log_max_files: int = 5
    stdio: tuple[int, int, int] | None = None
    tty: bool = False
    cgroups: Sequence[str] = ()
    netns: str = ""
    uid: int | None = None
    gid: int | None = None
    groups: Sequence[int] | None = None


@dataclasses.dataclass(frozen=True)
class Exit:
    """The end of a process: `code` is 128 + `signal` if a signal ended it; `time_s` is Unix time.

    `swept`: its shim ended everything below it. It is false if the shim itself was killed.
    """

    code: int
    signal: int
    time_s: float
    swept: bool = True


class Process:
    """A running main process. `exited` is done when it and all its descendants have ended."""

    def __init__(self, shim: asyncio.subprocess.Process, pid: int) -> None:
        """Use `start`."""
        self.pid = pid
        self.exited: asyncio.Future[Exit] = asyncio.get_running_loop().create_future()
        self._shim = shim
        self._watch = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, spec: ProcessSpec) -> Process:
        """Run `spec`. Raises StartError. The caller keeps the descriptors in `stdio`."""
        shim = await _spawn(spec)
        request: dict[str, Any] = dataclasses.asdict(spec)
        request["parent"] = os.getpid()
        try:
            assert shim.stdin is not None
            assert shim.stdout is not None
            shim.stdin.write(json.dumps(request, default=dict).encode() + b"\n")
            async with asyncio.timeout(_START_DEADLINE_S):
                line = await shim.stdout.readline()
            event: dict[str, Any] = json.loads(line) if line else {"startError": "the shim ended before it began"}
            if "started" not in event:
                raise StartError(event.get("startError", "the program could not be started"))
            return cls(shim, event["started"])
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                shim.kill()
            with contextlib.suppress(ConnectionError):
                await asyncio.shield(asyncio.ensure_future(shim.communicate()))  # its pipes close too
            SHIMS.discard(shim.pid)
            if isinstance(error, TimeoutError | ConnectionError | ValueError):
                raise StartError(f"the shim did not start the program: {error!r}") from error
            raise

    def signal(self, number: int) -> None:
        """Send a signal to the main process alone, as a container runtime does with PID 1."""
        self._say({"signal": number})

    def kill(self) -> None:
        """Kill the process and its descendants at once."""
        self._say({"kill": True})

    def kill_shim(self) -> None:
        """Kill a shim that does not answer. The caller must end its remaining processes."""
        with contextlib.suppress(ProcessLookupError):
            self._shim.kill()

    def _say(self, request: dict[str, Any]) -> None:
        if self._shim.stdin is not None and not self.exited.done():
            with contextlib.suppress(ConnectionError, RuntimeError):
                self._shim.stdin.write(json.dumps(request).encode() + b"\n")

    async def _read(self) -> None:
        assert self._shim.stdout is not None
        result = None
        with contextlib.suppress(ConnectionError, ValueError):
            while line := await self._shim.stdout.readline():
                event = json.loads(line)
                if "exited" in event:
                    result = Exit(event["exited"]["code"], event["exited"]["signal"], event["exited"]["time"])
        await self._shim.wait()
        SHIMS.discard(self._shim.pid)
        if self._shim.stdin is not None:
            self._shim.stdin.close()
        if not self.exited.done():  # when a shim is killed, its main process ends too
            self.exited.set_result(result or Exit(128 + signal.SIGKILL, signal.SIGKILL, time.time(), swept=False))


SHIMS: set[int] = set()
"""The process ids of all shims of this kubelet: its only expected children."""

_spawning = 0


def spawning() -> bool:
    """Returns whether a child is being started whose pid is not known yet."""
    return _spawning > 0


async def _spawn(spec: ProcessSpec) -> asyncio.subprocess.Process:
    global _spawning
    markers = {name: value for name, value in spec.env.items() if name.startswith("MUSTER_")}
    _spawning += 1
    try:
        shim = await asyncio.create_subprocess_exec(
            sys.executable,
            "-I",
            "-S",
            "-c",
            _RUN_SHIM,
            str(_SHIM),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={"LANG": "C.UTF-8", **markers},
            cwd="/",
            pass_fds=spec.stdio or (),
            start_new_session=True,
            limit=_LINE_LIMIT_BYTES,
        )
        SHIMS.add(shim.pid)
        return shim
    finally:
        _spawning -= 1


async def run_helper(argv: Sequence[str]) -> tuple[int, str]:
    """Run a short program of this machine. Returns its exit code and output."""
    global _spawning
    _spawning += 1  # the child must not count as an orphan
    try:
        program = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(_HELPER_S):
            output, _ = await program.communicate()
        return program.returncode or 0, output.decode(errors="replace")
    except OSError as error:
        return 127, str(error)
    finally:
        _spawning -= 1
