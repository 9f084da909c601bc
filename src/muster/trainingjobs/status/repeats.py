"""Finds jobs whose faults repeat: restarts alone do not help them."""

from __future__ import annotations

from typing import Final

from muster.api.training_job import TrainingJob

FAULTS: Final = 3
WINDOW_S: Final = 3600.0
_FINISHED: Final = ("Succeeded", "Failed")


def faults_repeat(job: TrainingJob, now: float) -> bool:
    """Return whether the unfinished job had `FAULTS` or more faults within the last `WINDOW_S` seconds."""
    times = [fault.time.timestamp() for fault in job.status.faults[-FAULTS:] if fault.time is not None]
    return job.status.phase not in _FINISHED and len(times) == FAULTS and times[0] > now - WINDOW_S
