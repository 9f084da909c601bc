"""Progress reports while a save blocks training."""

from __future__ import annotations

import contextlib
import threading

from muster.sdk import reports
from muster.sdk.errors import StaleAttempt

HEARTBEAT_S = 15.0


class Heartbeat:
    """Reports the step from time to time while a save blocks training, so that the job does not count as stalled."""

    def __init__(self, step: int) -> None:
        self._step, self._ended = step, threading.Event()

    def __enter__(self) -> None:
        with contextlib.suppress(RuntimeError):  # Python refuses new threads while it exits
            threading.Thread(target=self._run, name="muster-heartbeat", daemon=True).start()

    def __exit__(self, *exc: object) -> None:
        self._ended.set()

    def _run(self) -> None:
        with contextlib.suppress(StaleAttempt):  # the save itself learns it
            while not self._ended.wait(HEARTBEAT_S):
                reports.report(step=self._step)
