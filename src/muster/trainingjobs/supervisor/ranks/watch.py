"""Reads the notes that ranks leave in the supervisor's private folder (`hook.py`), and acts on them."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal

from ..basics import log, write_file
from ..processes import start_ticks
from .hook import FAILING, HANDLER, NAME, STACKS

EXIT_S = 10.0
"""Time in which a failed rank may end by itself: handlers of atexit, threads, the last output."""


class RankWatch:
    """Kills processes that left a note of their failure and then did not end."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.join(folder, NAME)
        os.mkdir(self.folder, 0o700)
        hook = importlib.import_module(".hook", __package__)
        source = hook.__spec__.loader.get_source(hook.__name__)  # type: ignore[union-attr]
        write_file(os.path.join(self.folder, "sitecustomize.py"), source)
        self._noted: dict[int, float] = {}  # failed processes, and when their notes were found

    def exit_code(self, pid: int) -> int | None:
        """The exit code in a process's note; None without a note."""
        note = self._read(FAILING, pid)
        return note[1] if note is not None else None

    def hooked(self) -> list[int]:
        """Live processes with the hook."""
        notes = ((pid, self._read(HANDLER, pid)) for pid in self._pids(HANDLER))
        return [pid for pid, note in notes if note is not None and start_ticks(pid) == note[0]]

    def forget(self) -> None:
        """Remove the notes of an ended attempt."""
        self._noted.clear()
        for name in os.listdir(self.folder):
            if name.startswith((FAILING, HANDLER, STACKS)):
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self.folder, name))

    def tick(self, now: float) -> None:
        """Read new notes, and kill the processes whose time is up."""
        for pid in self._pids(FAILING):
            since = self._noted.setdefault(pid, now)
            note = self._read(FAILING, pid)
            if now - since < EXIT_S or note is None or start_ticks(pid) != note[0]:
                continue
            log(f"process {pid} failed with exit code {note[1]} and did not end within {EXIT_S:.0f} s: killed")
            self._noted[pid] = float("inf")
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _pids(self, kind: str) -> list[int]:
        ends = [name[len(kind) :] for name in os.listdir(self.folder) if name.startswith(kind)]
        return [int(end) for end in ends if end.isdigit()]

    def _read(self, kind: str, pid: int) -> tuple[str, int] | None:
        """(start time, number) of a process's note."""
        try:
            with open(os.path.join(self.folder, f"{kind}{pid}"), encoding="ascii") as file:
                started, number = file.read().split()
            return started, int(number)
        except (OSError, ValueError):
            return None
