"""What this process knows about its checkpoints: saves that have begun, bad ones, and the one it started from."""

from __future__ import annotations

import os
import threading


class Process:
    """State of one process. A forked child begins with an empty one.

    Attributes:
        in_flight: names of checkpoints that are being saved.
        failed: names of checkpoints whose save failed in this process.
        again: number of saves of each step so far.
        checked: names of checkpoints whose objects were compared with their manifest.
        began: path of the checkpoint that `load_checkpoint` returned; "" before.
        loads: number of calls of `load_checkpoint`.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.in_flight: set[str] = set()
        self.failed: set[str] = set()
        self.again: dict[int, int] = {}
        self.began = ""
        self.loads = 0
        self.noted_start = False

    def count(self, step: int) -> int:
        """How often this step was saved before; counts this time."""
        with self.lock:
            self.again[step] = self.again.get(step, -1) + 1
            return self.again[step]


_process: Process | None = None


def process() -> Process:
    """The state of this process."""
    global _process
    if _process is None or _process.pid != os.getpid():
        _process = Process()
    return _process
