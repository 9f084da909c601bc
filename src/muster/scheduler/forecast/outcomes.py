"""Compares the first estimate of each job's start with its start, and keeps the calibration that follows from it.

A job that still waits after its interval counts at once. Otherwise the estimates of a queue that moves slower than
expected would be corrected too late. The record remembers these jobs, so their later start does not count again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from muster.api.run_history import LATE_MAX, StartCalibration
from muster.api.training_job import TrainingJob
from muster.api.training_job_status import StartInterval as WrittenInterval
from muster.kube.objects.struct import from_dict
from muster.scheduler.forecast.calibration import Calibration, StartInterval


class StartRecord(msgspec.Struct, frozen=True):
    """The calibration, and the UIDs of late jobs that are counted in it already."""

    calibration: Calibration = Calibration()
    late: tuple[str, ...] = ()


class Outcome(NamedTuple):
    """A job that had an interval has started, or (`waits`) still waits after it; or (`given` None) it is gone."""

    uid: str
    given: StartInterval | None
    at: float
    waits: bool = False


def after(record: StartRecord, outcomes: Iterable[Outcome]) -> StartRecord:
    """Return the record after these outcomes."""
    for outcome in outcomes:
        counted = outcome.uid in record.late
        if counted and not outcome.waits:
            record = replace(record, late=tuple(uid for uid in record.late if uid != outcome.uid))
        if not counted and outcome.given is not None:
            late = (*record.late, outcome.uid)[-LATE_MAX:] if outcome.waits else record.late
            record = StartRecord(record.calibration.after(outcome.given, outcome.at), late)
    return record


def started(old: TrainingJob, new: TrainingJob) -> Outcome | None:
    """Return the outcome if the job has got its nodes between these two versions."""
    given = first_interval(old)
    if given is None or old.uid != new.uid or new.status.start_forecast is not None:
        return None
    admitted = next((each for each in new.status.conditions if each.type == "Admitted"), None)
    if admitted is None or admitted.status != "True" or admitted.last_transition_time is None:
        return Outcome(new.uid, None, 0.0)  # stopped, or ended
    return Outcome(new.uid, given, admitted.last_transition_time.timestamp())


def overdue(jobs: Iterable[TrainingJob], record: StartRecord, now: float) -> list[Outcome]:
    """Return the jobs that still wait after their interval and are not counted, and the late ones that are gone."""
    waiting = {job.uid: given for job in jobs if (given := first_interval(job)) is not None}
    gone = [Outcome(uid, None, now) for uid in record.late if uid not in waiting]
    return gone + [
        Outcome(uid, given, now, waits=True)
        for uid, given in waiting.items()
        if given.latest is not None and now > given.latest and uid not in record.late
    ]


def first_interval(job: TrainingJob) -> StartInterval | None:
    """Return the first interval of a job that waits; None without one."""
    forecast = job.status.start_forecast
    return _seconds(forecast.first) if forecast is not None and forecast.first is not None else None


def _seconds(written: WrittenInterval) -> StartInterval:
    latest = written.latest.timestamp() if written.latest is not None else None
    return StartInterval(written.earliest.timestamp(), latest)


def to_calibration(record: StartRecord) -> StartCalibration | None:
    """Return the form in the API object; None before the first outcome."""
    if record == StartRecord():
        return None
    known = record.calibration
    return StartCalibration(
        lower=round(known.lower, 6),
        upper=round(known.upper, 6),
        outcomes=known.outcomes,
        held=known.held,
        late=record.late,
    )


def read_calibration(written: Any) -> tuple[StartRecord, int]:
    """Return the record from the API object, and 1 if it is not readable, else 0."""
    if written is None:
        return StartRecord(), 0
    try:
        found = from_dict(written, StartCalibration)
    except msgspec.ValidationError:
        return StartRecord(), 1
    known = Calibration(lower=found.lower, upper=found.upper, outcomes=found.outcomes, held=found.held)
    return StartRecord(known, found.late), 0
