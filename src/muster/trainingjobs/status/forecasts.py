"""Writes to a waiting job's status when it is expected to start, as the scheduler estimates it.

The estimate changes with each event in the cluster. So it is written again only if it changed by more than a quarter,
and at most every ten minutes. If the job's status is written for another reason, a new estimate does not go along.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from muster.api.training_job_status import StartForecast, StartInterval, TrainingJobStatus
from muster.trainingjobs.plan import Action, WriteStatus
from muster.trainingjobs.snapshot import JobSnapshot
from muster.trainingjobs.status import builder

WRITE_S: Final = 600.0
"""Minimum time between two estimates in the status."""
CHANGE: Final = 0.25
"""An edge of the interval must move by this share of the time until the later edge."""
_LEAST_S: Final = 60.0
"""Shorter times until the later edge count as this."""


def is_waiting(status: TrainingJobStatus) -> bool:
    """Returns whether an attempt waits for its first nodes, so that a start can be estimated."""
    return status.phase == "Pending" and status.attempt > 0 and not builder.condition_holds(status, "Admitted")


def is_due(status: TrainingJobStatus, forecast: StartForecast | None, now: float) -> bool:
    """Returns whether the estimate should be written now."""
    if forecast is None or not is_waiting(status):
        return False
    known = status.start_forecast
    if known is None or known.made_at is None or now < known.made_at.timestamp():
        return True
    return now >= known.made_at.timestamp() + WRITE_S and _changed(known, forecast, now)


def follow(snapshot: JobSnapshot, now: float) -> list[Action]:
    """Write the scheduler's newest estimate if it is due."""
    status, forecast = snapshot.job.status, snapshot.forecast
    if forecast is None or not is_due(status, forecast, now):
        return []
    known = status.start_forecast
    first = known.first if known is not None else None
    if first is None and forecast.basis != "Limits":  # limits are a bound, and not an estimate to learn from
        first = forecast.interval
    status = replace(status, start_forecast=replace(forecast, first=first))
    return [WriteStatus(builder.fitted(status), "Forecast")]


def without_old(action: Action) -> Action:
    """Return the action; if it writes the status of a job that does not wait any more, without the estimate."""
    if not isinstance(action, WriteStatus) or action.status.start_forecast is None or is_waiting(action.status):
        return action
    return WriteStatus(replace(action.status, start_forecast=None), action.reason)


def _changed(known: StartForecast, forecast: StartForecast, now: float) -> bool:
    before, after = known.interval, forecast.interval
    if before is None or after is None:
        return (before, known.unknown) != (after, forecast.unknown)
    if (before.latest is None) != (after.latest is None):
        return True
    wait_s = max(_LEAST_S, _later(before) - now)
    moved = abs(after.earliest.timestamp() - before.earliest.timestamp()), abs(_later(after) - _later(before))
    return max(moved) > CHANGE * wait_s


def _later(interval: StartInterval) -> float:
    return (interval.latest or interval.earliest).timestamp()
