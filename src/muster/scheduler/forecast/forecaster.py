"""Estimates from time to time when waiting TrainingJobs start, and passes the estimates on.

Estimates are for the queue as it is: jobs that come later are not foreseen, except by the calibration.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Coroutine, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from muster.api.training_job_status import ForecastGap, StartInterval
from muster.api.training_job_status import StartForecast as JobForecast
from muster.scheduler.forecast.calibration import PROBABILITY, Calibration
from muster.scheduler.forecast.starts import SAMPLES, WAITING_MAX, StartForecast, StartSimulations
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.memo import matcher_for
from muster.scheduler.plan import Plan, Settings
from muster.scheduler.reasons import Why
from muster.scheduler.snapshot import Snapshot

PERIOD_S: Final = 30.0
"""Minimum time between two estimates."""
LOOK_S: Final = 1.0
"""Minimum time between two looks at the queue while no TrainingJob waits."""

Forecasts = Callable[[str, JobForecast | None], None]
"""Callback with `namespace/name` of a TrainingJob and when it is expected to start; None when it stops waiting."""


class Forecaster:
    """Calls `forecasts` with an estimate for each waiting TrainingJob."""

    def __init__(self, forecasts: Forecasts) -> None:
        self._forecasts = forecasts
        self._known: set[str] = set()
        self._due = 0.0

    def look(
        self, snapshot: Snapshot, plan: Plan, now: float, settings: Settings, calibration: Calibration, ended: int
    ) -> Coroutine[Any, Any, None] | None:
        """Return the work of making new estimates if they are due, else None.

        The snapshot may change before this work is done.

        Args:
            snapshot: the cluster.
            plan: the plan for the snapshot. Gangs that it places have no estimate.
            now: seconds since the epoch.
            settings: of the scheduler.
            calibration: of the intervals.
            ended: the number of ended gangs in the history.
        """
        if now < self._due:
            return None
        placed = {action.gang for action in plan.actions}
        queued = [gang for gang in _in_order(snapshot) if gang.key not in placed]
        gaps = {
            gang.key: (gang.full_name, _gap(snapshot, plan, gang, at))
            for at, gang in enumerate(queued)
            if gang.job is not None
        }
        self._due = now + (PERIOD_S if gaps else LOOK_S)
        if not gaps and not self._known:
            return None
        simulations = StartSimulations(snapshot, matcher_for(snapshot, plan.memo), now, settings) if gaps else None
        return self._estimate(simulations, gaps, now, calibration, ended)

    async def _estimate(
        self,
        simulations: StartSimulations | None,
        gaps: Mapping[str, tuple[str, ForecastGap]],
        now: float,
        calibration: Calibration,
        ended: int,
    ) -> None:
        """Run the simulations and pass on what was found; `gaps`: (name, why it has no interval, if so) by gang."""
        found: Mapping[str, StartForecast] = {}
        if simulations is not None:
            for number in range(SAMPLES):
                simulations.run(number)
                await asyncio.sleep(0)  # let other tasks of this process run
            found = simulations.forecasts()
        known = set()
        for key, (name, gap) in gaps.items():
            forecast = found.get(key)
            written = _written(forecast, calibration, now) if forecast is not None else None
            jobs = ended if gap == "TooFewJobs" else 0
            self._forecasts(name, written or JobForecast(unknown=gap, jobs=jobs, made_at=_moment(now)))
            known.add(name)
        for name in self._known - known:
            self._forecasts(name, None)
        self._known = known


def _in_order(snapshot: Snapshot) -> Iterator[Gang]:
    queues = [[queue[at] for at in range(len(queue))] for queue in snapshot.queues.values()]
    return heapq.merge(*queues, key=lambda gang: gang.order)


def _written(forecast: StartForecast, calibration: Calibration, now: float) -> JobForecast | None:
    if not forecast.jobs:
        interval = StartInterval(earliest=_moment(now), latest=_moment(now + forecast.waits_s[-1]))
        return JobForecast(interval=interval, probability=1.0, basis="Limits", made_at=_moment(now))
    given = calibration.interval(forecast.waits_s, now)
    if given is None:
        return None
    interval = StartInterval(
        earliest=_moment(given.earliest), latest=_moment(given.latest) if given.latest is not None else None
    )
    return JobForecast(
        interval=interval,
        probability=PROBABILITY,
        basis="General" if forecast.general else "Similar",
        jobs=forecast.jobs,
        made_at=_moment(now),
    )


def _gap(snapshot: Snapshot, plan: Plan, gang: Gang, at: int) -> ForecastGap:
    reason = plan.waiting.get(gang.key)
    if reason is not None and reason.why is Why.MORE_THAN_THE_CLUSTER:
        return "TooLarge"
    if gang.likeness is None or snapshot.run_times.remaining(gang.likeness, 0.0) is None:
        return "TooFewJobs"
    return "TooFarBack" if at >= WAITING_MAX else "TooUncertain"


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(int(seconds), UTC)
