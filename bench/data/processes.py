"""Runs sides of the bench in processes of their own, one or several at once."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).parents[2]
WORKER = Path(__file__).with_name("worker.py")
DEADLINE_S = 300.0


class Measured(msgspec.Struct, frozen=True):
    """What one process did between its start signal and its end."""

    seconds: float
    bytes: int
    samples: int
    cpu_s: float
    peak_mb: float
    grown_mb: float
    """How much the peak of its memory grew after imports."""
    downloads: float = 0.0
    """Bytes that the bucket sent for each byte of the shards."""
    blocked_s: float = 0.0
    """Saves: how long the training loop waited."""

    @property
    def mb_per_s(self) -> float:
        """Megabytes (10^6) a second."""
        return self.bytes / 1e6 / self.seconds

    @property
    def cpu_s_per_gb(self) -> float:
        """CPU seconds of this process for each 10^9 bytes."""
        return self.cpu_s / self.bytes * 1e9


class WorkerFailed(Exception):
    """A side ended without a result; the message is the end of what it printed."""


class Worker:
    """One side, prepared and waiting for the start signal."""

    def __init__(self, side: str, settings: Mapping[str, Any], env: Mapping[str, str], python: Path | None = None):
        """Start it, with `env` beside our own environment, in another Python if given."""
        self.side = side
        self._errors = Path(settings["folder"]) / f"{side}-{os.urandom(4).hex()}.log"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [str(python or sys.executable), "-P", str(WORKER), side, json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **env},
            )
        self._deadline = threading.Timer(DEADLINE_S, self._process.kill)
        self._deadline.daemon = True
        self._deadline.start()

    def prepared(self) -> None:
        """Wait until it is ready. Raises WorkerFailed."""
        for line in self._lines():
            if line == "ready":
                return
        raise self._failed()

    def go(self) -> None:
        """Let it start."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def result(self) -> Measured:
        """Wait for its end. Raises WorkerFailed."""
        last = ""
        for line in self._lines():
            last = line
        if self._process.wait() != 0 or not last.startswith("{"):
            raise self._failed()
        return msgspec.json.decode(last, type=Measured)

    def end(self) -> None:
        """Kill it if it still runs."""
        self._deadline.cancel()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        self._process.communicate()

    def _lines(self) -> Iterator[str]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield line.strip()

    def _failed(self) -> WorkerFailed:
        tail = self._errors.read_text(errors="replace").splitlines()[-6:]
        return WorkerFailed(f"{self.side}: {' | '.join(tail) or 'no message'}")


def run_together(workers: Sequence[Worker]) -> list[Measured]:
    """Prepare all, start them at the same moment, and return their results in order. Ends them in any case."""
    try:
        for worker in workers:
            worker.prepared()
        for worker in workers:
            worker.go()
        return [worker.result() for worker in workers]
    finally:
        for worker in workers:
            worker.end()


def run_alone(side: str, settings: Mapping[str, Any], env: Mapping[str, str], python: Path | None = None) -> Measured:
    """One side alone."""
    return run_together([Worker(side, settings, env, python)])[0]
