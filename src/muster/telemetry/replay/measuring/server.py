"""Runs a Prometheus server on a temporary folder, for measurements."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from muster.telemetry.prometheus.client import PrometheusClient
from muster.telemetry.prometheus.errors import PrometheusError

_POLL_S: Final = 0.02
_LOG_SHOWN: Final = 600


class ServerError(Exception):
    """The server did not start, or was not ready in time; with the end of its log."""


@dataclass(slots=True)
class Server:
    """A running server that is ready.

    Attributes:
        client: asks it.
        process: it.
    """

    client: PrometheusClient
    process: asyncio.subprocess.Process

    def peak_memory_bytes(self) -> int:
        """Return the peak of its resident memory (proc(5), VmHWM). Raises ServerError where there is no /proc."""
        try:
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        except OSError as error:
            raise ServerError("the peak of a process's memory can be read on Linux only") from error
        raise ServerError("the server ended")

    def running_share(self) -> float:
        """Return which share of the time that its threads wanted to run they ran; see `running_share`."""
        return running_share(self.process.pid)


def running_share(pid: int) -> float:
    """Return which share of the time that the threads of a process wanted to run they had a core (proc(5), schedstat).

    It is 1 on an idle machine, and where the kernel does not count this.
    """
    ran = waited = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError):
            running_ns, waiting_ns, _ = file.read_text().split()
            ran, waited = ran + int(running_ns), waited + int(waiting_ns)
    return ran / (ran + waited) if ran else 1.0


@contextlib.asynccontextmanager
async def running(
    binary: str, folder: Path, data: Path, cores: int, timeout_s: float, snapshot: bool = False
) -> AsyncIterator[Server]:
    """Start a server without targets, wait until it is ready, and kill it at the end without a clean shutdown.

    Args:
        binary: path of `prometheus`.
        folder: for its configuration and log.
        data: folder of its database.
        cores: GOMAXPROCS.
        timeout_s: until it is ready.
        snapshot: end it cleanly instead, with a snapshot for the next start.

    Raises:
        ServerError: it cannot be started, ended, or was not ready in time.
    """
    port = _free_port()
    (folder / "prometheus.yml").write_text("global: {scrape_interval: 1h}\n")
    command = [
        binary, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={data}",
        f"--web.listen-address=127.0.0.1:{port}", "--web.enable-remote-write-receiver",
        *(["--enable-feature=memory-snapshot-on-shutdown"] if snapshot else []),
    ]  # fmt: skip
    log = folder / "prometheus.log"
    with log.open("wb") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, "GOMAXPROCS": str(cores)},
            )
        except OSError as error:
            raise ServerError(f"{binary} cannot be started: {error.strerror or error}") from error
    try:
        async with PrometheusClient(f"http://127.0.0.1:{port}", timeout_s=timeout_s) as client:
            await _ready(client, process, log, timeout_s)
            yield Server(client, process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM if snapshot else signal.SIGKILL)
        try:
            async with asyncio.timeout(timeout_s):
                await process.wait()
        finally:
            if process.returncode is None:
                process.kill()


async def _ready(client: PrometheusClient, process: asyncio.subprocess.Process, log: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.returncode is None:
        with contextlib.suppress(PrometheusError):
            await client.page("/-/ready", timeout_s=max(deadline - time.monotonic(), _POLL_S))
            return
        await asyncio.sleep(_POLL_S)
    why = f"ended with status {process.returncode}" if process.returncode is not None else "was not ready in time"
    raise ServerError(f"the Prometheus server {why}; the end of its log:\n{_end_of(log)}")


def _end_of(log: Path) -> str:
    return log.read_bytes()[-_LOG_SHOWN:].decode(errors="replace").strip()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
