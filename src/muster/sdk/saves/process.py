"""What this process knows about its checkpoints: saves that have begun, bad ones, and the one it started from."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from muster.sdk.records import Record


class Process:
    """State of one process. A forked child begins with an empty one.

    Attributes:
        failed: names of checkpoints whose save failed in this process.
        again: number of saves of each step so far.
        records: records in the object store by key, each with its ETag, so that each version is read once.
        began: path of the checkpoint that `load_checkpoint` returned; "" before.
        loads: number of calls of `load_checkpoint`.
        one_save: held while a thread saves and waits for it: threads that save the same step would share a name.
        noted_start: whether the record of the checkpoint from which the attempt began was brought up to date.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = threading.Lock()
        self.one_save = threading.RLock()
        self.failed: set[str] = set()
        self.again: dict[int, int] = {}
        self.began = ""
        self.loads = 0
        self.noted_start = False
        self.records: dict[str, tuple[str, Record | None]] = {}

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
