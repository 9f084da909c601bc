"""Restarts crashed programs, with growing pauses."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from os import kill
from pathlib import Path
from typing import Any

from muster.controlplane.children import Child
from muster.embedded.layout import ProcessId
from muster.embedded.programs import Program

FIRST_PAUSE_S = 0.5
PAUSE_S_MAX = 30.0
STEADY_S = 60.0
"""After a run this long, the pause is reset."""


class Supervised:
    """A program with its state: whether it should run, and whether it runs or waits for a restart."""

    def __init__(self, program: Program, log: Path, env: Mapping[str, str], clock: Callable[[], float]) -> None:
        """Create the program's state; `tick` starts the program."""
        self.program = program
        self.wanted = True
        self.restarts = 0
        self.child: Child | None = None
        self._log = log
        self._env = env
        self._clock = clock
        self._pause_s = FIRST_PAUSE_S
        self._start_at = 0.0
        self._started_at = 0.0

    def tick(self) -> bool:
        """Start the program if it should run and does not. Returns whether the state changed."""
        if self.child and self.child.exit_code is not None:
            now = self._clock()
            self._pause_s = FIRST_PAUSE_S if now - self._started_at > STEADY_S else self._pause_s
            self._start_at = now + self._pause_s
            self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)
            print(f"{self.program.name} exited with {self.child.exit_code}", flush=True)
            self.child = None
            self.restarts += 1
            return True
        if self.wanted and self.child is None and self._clock() >= self._start_at:
            self.child = Child(self.program.command, self._log, self._env)
            self._started_at = self._clock()
            print(f"{self.program.name} started, process {self.child.pid}", flush=True)
            return True
        return False

    def terminate(self) -> None:
        """Send SIGTERM, without waiting."""
        self.wanted = False
        if self.child and self.child.exit_code is None:
            with suppress(ProcessLookupError):
                kill(self.child.pid, signal.SIGTERM)

    def stop(self, grace_s: float) -> None:
        """End the program without a restart. A grace of 0 seconds kills it at once."""
        self.wanted = False
        if self.child:
            self.child.stop(grace_s)
            self.child = None

    def start(self) -> None:
        """Start the program again at once."""
        self.wanted = True
        self._start_at = 0.0
        self._pause_s = FIRST_PAUSE_S

    @property
    def process(self) -> ProcessId | None:
        """The running process."""
        return ProcessId.of(self.child.pid) if self.child else None

    def describe(self) -> dict[str, Any]:
        """Return the state as data for `status`."""
        state = "running" if self.child else "waiting" if self.wanted else "stopped"
        return {"state": state, "pid": self.child.pid if self.child else 0, "restarts": self.restarts}

    def log_tail(self, lines: int = 5) -> str:
        """The last lines of its log."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return "\n".join(text.splitlines()[-lines:])


def clock() -> float:
    """Seconds on a monotonic clock."""
    return time.monotonic()
