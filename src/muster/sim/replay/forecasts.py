"""Makes forecasts of the start of waiting jobs from time to time, as the controller does, and checks how they end."""

from __future__ import annotations

from muster.scheduler.forecast.calibration import Calibration, StartInterval
from muster.scheduler.forecast.run_times import ENOUGH
from muster.scheduler.forecast.starts import forecast_starts
from muster.scheduler.memo import matcher_for
from muster.scheduler.plan import Plan, Settings
from muster.scheduler.queue.projection import starts_by
from muster.scheduler.snapshot import Snapshot
from muster.sim.replay.objects import START_S
from muster.sim.replay.run import Run

PERIOD_S = 600.0
"""Minimum time between two forecasts of the queue, in virtual seconds."""


class Forecasts:
    """The first forecast of each job that waits, and the calibration that follows from their outcomes."""

    def __init__(self) -> None:
        self._new: dict[str, Run] = {}
        self._open: dict[str, tuple[Run, StartInterval]] = {}
        self._due_s = 0.0
        self.calibration = Calibration()

    def arrived(self, run: Run) -> None:
        """Record a new job, which has no forecast yet."""
        self._new[run.job.name] = run

    def started(self, run: Run, now: float) -> None:
        """Record that a job has all its nodes."""
        self._new.pop(run.job.name, None)
        known = self._open.pop(run.job.name, None)
        if known is not None:
            self.calibration = self.calibration.after(known[1], now)

    def look(self, snapshot: Snapshot, plan: Plan, settings: Settings, now: float) -> None:
        """Make the first forecast of jobs that wait. `plan` is the plan for the snapshot.

        Without a history, forecasts follow from time limits alone.
        """
        self._new = {name: run for name, run in self._new.items() if not run.nodes}
        if snapshot.run_times.records < ENOUGH:
            for run in self._new.values():
                self._from_limits(snapshot, plan, run, now)
        elif self._new and now >= self._due_s:
            self._due_s = now + PERIOD_S
            self._count_late(now)
            self._from_history(snapshot, plan, settings, now)

    def _from_limits(self, snapshot: Snapshot, plan: Plan, run: Run, now: float) -> None:
        gang = snapshot.gangs.get(run.key)
        start = starts_by(snapshot, plan, gang, START_S + now) if gang is not None else None
        if start is not None and run.forecast is None:
            run.forecast = (start.earliest - START_S, start.latest - START_S)

    def _from_history(self, snapshot: Snapshot, plan: Plan, settings: Settings, now: float) -> None:
        found = forecast_starts(snapshot, matcher_for(snapshot, plan.memo), START_S + now, settings)
        for name, run in list(self._new.items()):
            forecast = found.get(run.key)
            interval = self.calibration.interval(forecast.waits_s, now) if forecast is not None else None
            if interval is None:
                continue
            del self._new[name]
            if run.forecast is None:
                run.forecast = (interval.earliest, interval.latest)
                self._open[name] = run, interval

    def _count_late(self, now: float) -> None:
        """Count jobs that still wait after their interval, once each."""
        late = [
            name for name, (_, interval) in self._open.items() if interval.latest is not None and now > interval.latest
        ]
        for name in late:
            self.calibration = self.calibration.after(self._open.pop(name)[1], now)
