"""The pause before a restart that is charged to the program. It grows while attempts make no progress.

As a Kubernetes Job does: 10 s, doubled each time, at most 6 min (Kubernetes: Jobs, pod backoff failure policy). The
first restart comes at once, and so does the one after an attempt that made progress. Progress is a new largest step, a
checkpoint, or a run of 10 min (kubelets reset their back-off after that time too). During the pause the pods stay on
their nodes.
"""

from __future__ import annotations

from datetime import UTC
from typing import Final

from msgspec.structs import replace

from muster.api.training_job_status import Backoff, Cause, Progress, TrainingJobStatus
from muster.trainingjobs.status import builder

FIRST_S: Final = 10.0
MOST_S: Final = 360.0
LONG_S: Final = 600.0
"""An attempt that ran this long counts as progress."""


def after_fault(old: TrainingJobStatus, cause: Cause, progress: Progress | None, now: float) -> Backoff | None:
    """Returns the backoff after a fault of this cause ended the attempt in `old`; `progress` is its newest progress."""
    if cause != "user":
        return old.backoff
    before = old.backoff.failures if old.backoff is not None and not _got_further(old, progress, now) else 0
    return _backoff(before + 1, now)


def attributed(status: TrainingJobStatus, was: Cause, cause: Cause, now: float) -> TrainingJobStatus:
    """Return the status after late evidence has changed the cause of the newest fault."""
    if "user" not in (was, cause) or was == cause:
        return status
    before = status.backoff.failures if status.backoff is not None else 0
    if cause == "user":
        return replace(status, backoff=_backoff(before + 1, now))
    return replace(status, backoff=Backoff(failures=before - 1) if before > 1 else None)


def begins_at(status: TrainingJobStatus) -> float:
    """Returns when the next attempt may begin, in seconds since the epoch; 0 without a backoff."""
    until = status.backoff.until if status.backoff is not None else None
    return until.timestamp() if until is not None else 0.0


def said(status: TrainingJobStatus) -> str:
    """Returns a text with the start of the attempt and the reason; "" without a backoff."""
    if status.backoff is None or status.backoff.until is None:
        return ""
    moment = status.backoff.until.astimezone(UTC).strftime("%H:%M:%S UTC")
    failures = status.backoff.failures
    return f"attempt {status.attempt} begins at {moment}: the program failed {failures} times in a row without progress"


def _backoff(failures: int, now: float) -> Backoff:
    if failures < 2:
        return Backoff(failures=failures)
    pause_s = min(MOST_S, FIRST_S * 2.0 ** min(failures - 2, 10))
    return Backoff(failures=failures, until=builder.at(now + pause_s))


def _got_further(old: TrainingJobStatus, progress: Progress | None, now: float) -> bool:
    if old.last_checkpoint is not None and old.last_checkpoint.attempt == old.attempt:
        return True
    most = max((fault.step for fault in old.faults if fault.step is not None), default=None)
    if progress is not None and (most is None or progress.step > most):
        return True
    runs = next((each for each in old.conditions if each.type == "Running" and each.status == "True"), None)
    since = runs.last_transition_time if runs is not None else None
    return since is not None and now - since.timestamp() >= LONG_S
