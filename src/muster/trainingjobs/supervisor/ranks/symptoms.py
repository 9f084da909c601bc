"""Symptoms of a running attempt: ranks whose process does not run, and tracebacks in their output."""

from __future__ import annotations

import os
from typing import Any, Iterable, NamedTuple

from ..processes import process_state
from .watch import RankWatch

IDLE_MAX, TRACES_MAX = 16, 2
TRACE_EVERY_S = 30.0
"""Interval at which new tracebacks are sent, because some programs log one at each step and continue."""
_NAMES = {"T": "stopped", "t": "stopped", "Z": "zombie", "X": "gone", "": "gone"}


class RankSeen(NamedTuple):
    """A live rank: its number, the pid of its command, the newest traceback that it printed."""

    number: int
    pid: int
    trace: list[str]


class Symptoms:
    """Observations about running ranks for the controller."""

    def __init__(self, watch: RankWatch) -> None:
        self._watch = watch
        self._seen: dict[int, str] = {}  # by rank, at the last check
        self._sent_at = float("-inf")
        self.body: dict[str, Any] = {}

    def look(self, ranks: Iterable[RankSeen], now: float) -> bool:
        """Check the live ranks of the running attempt. Returns whether something changed. Call it about once a second.

        A state counts after two checks in a row, because debuggers and profilers stop a process for a moment.
        """
        alive = sorted(ranks, key=lambda rank: rank.number)
        seen = {rank.number: name for rank in alive for name in [self._state(rank)] if name}
        idle = [{"rank": number, "state": name} for number, name in seen.items() if self._seen.get(number) == name]
        self._seen = seen
        traces = [{"rank": rank.number, "lines": rank.trace} for rank in alive if rank.trace]
        body = {"idle": idle[:IDLE_MAX], "traces": traces[:TRACES_MAX]}
        body = {name: value for name, value in body.items() if value}
        if body.get("traces") != self.body.get("traces") and now - self._sent_at < TRACE_EVERY_S:
            body.pop("traces", None)
            if "traces" in self.body:
                body["traces"] = self.body["traces"]
        if body == self.body:
            return False
        if body.get("traces") != self.body.get("traces"):
            self._sent_at = now
        self.body = body
        return True

    def forget(self) -> None:
        """Forget the observations, because the attempt no longer runs."""
        self._seen, self.body, self._sent_at = {}, {}, float("-inf")

    def _state(self, rank: RankSeen) -> str:
        """Return in one word why the rank does not run; "" if it runs. Below a shell, its Python is checked too."""
        for pid in [rank.pid, *(pid for pid in self._watch.hooked() if pid != rank.pid and _leads(rank.pid, pid))]:
            name = _NAMES.get(process_state(pid), "")
            if name and (pid == rank.pid or name != "gone"):
                return name
        return ""


def _leads(leader: int, pid: int) -> bool:
    try:
        return os.getsid(pid) == leader
    except ProcessLookupError:
        return False
