"""Running `python -m muster.gputest` as its users do, and tests of it on a back end of one's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from muster.gputest.backend import Backend
from muster.gputest.codes import Code
from muster.gputest.context import Context
from muster.gputest.report import Failure, Report
from muster.gputest.wire import Event, Failed, Measured, Rendezvous, Request, Setup, Skipped

AMPLE_S = 600
"""A budget that a crowded machine keeps, too: the tests of level 1 do their work once, whatever it is."""


def command(*arguments: str, timeout_s: float = 110, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "muster.gputest", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=os.environ | environment,
    )


def report(*arguments: str, timeout_s: float = 110, **environment: str) -> Report:
    ran = command("-o", "json", *arguments, timeout_s=timeout_s, **environment)
    assert ran.returncode in (0, 1), ran.stderr
    found = msgspec.json.decode(ran.stdout, type=Report)
    assert found.passed == (ran.returncode == 0)
    return found


def codes(failures: tuple[Failure, ...], test: str) -> set[tuple[str, str]]:
    return {(failure.code, failure.gpu) for failure in failures if failure.test == test}


class Bench(Context):
    """A context whose back end is given; keeps what a test finds."""

    def __init__(self, backend: Backend, *, deadline_s: float = 100, meeting: tuple[str, int] | None = None):
        self.events: list[Event] = []
        other = Rendezvous(address=meeting[0], port=meeting[1], node_rank=0, nodes=2) if meeting else None
        super().__init__(
            Setup(backend="cpu:1", level=1, scratch=".", rendezvous=other), lambda event: self.events.append(event)
        )
        self._backend = backend
        self.begin(Request(test="test", work_s=0, deadline_s=deadline_s))

    def run(self, test: Callable[[Context], Any]) -> Bench:
        test(self)
        return self

    @property
    def failed(self) -> set[tuple[Code, str]]:
        return {(event.code, event.gpu) for event in self.events if isinstance(event, Failed)}

    @property
    def messages(self) -> list[str]:
        return [event.message for event in self.events if isinstance(event, Failed)]

    @property
    def skipped(self) -> bool:
        return any(isinstance(event, Skipped) for event in self.events)

    def figures(self, name: str) -> list[float]:
        return [event.value for event in self.events if isinstance(event, Measured) and event.figure == name]
