"""Keeps the run times of ended jobs, and gives them to the scheduler from time to time, as the controller does."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from muster.scheduler.forecast.run_times import RECORDS_MAX, EndedRun, RunTimes
from muster.scheduler.gangs.gang import Gang
from muster.sim.replay.objects import START_S
from muster.sim.replay.run import Run

REFRESH_S = 600.0
"""Minimum time between two models, in virtual seconds."""


class History:
    """The newest ended jobs of a replay, up to `RECORDS_MAX`."""

    def __init__(self) -> None:
        self._ended: deque[EndedRun] = deque(maxlen=RECORDS_MAX)
        self._changed = False
        self._due_s = 0.0

    def add(self, run: Run, gang: Gang, now: float) -> None:
        """Record a job that has done its work."""
        if gang.likeness is not None:
            self._ended.append(EndedRun(gang.likeness, run.job.run_s + run.redone_s, True, START_S + now))
            self._changed = True

    def is_due(self, now: float) -> bool:
        """Return whether jobs have ended since the last model, and that model is old enough."""
        return self._changed and now >= self._due_s

    def model(self, open_runs: Iterable[Run], gangs: Mapping[str, Gang], now: float) -> RunTimes:
        """Return the run times of ended jobs and of those that still run."""
        self._changed, self._due_s = False, now + REFRESH_S
        running = []
        for run in open_runs:
            likeness = gangs[run.key].likeness
            if run.started_s is not None and likeness is not None:
                running.append(EndedRun(likeness, run.work_s(now) + run.redone_s, False, START_S + now))
        return RunTimes(self._ended, running)
