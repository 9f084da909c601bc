"""Progress of running jobs: stored in memory at once, and written to the status at a limited rate."""

from __future__ import annotations

from collections import deque
from datetime import UTC, datetime
from statistics import median
from typing import Final

from muster.api.training_job_status import Progress

JOB_INTERVAL_S: Final = 1.0
CLUSTER_WRITES_PER_S: Final = 5.0
_INTERVALS: Final = 31
"""Number of the newest steps for the median."""


class Pacer:
    """Limits the writes of progress: one per second for each job, and five per second for all jobs."""

    def __init__(self, job_interval_s: float = JOB_INTERVAL_S, writes_per_s: float = CLUSTER_WRITES_PER_S) -> None:
        """Create the limiter with its whole budget."""
        self._job_interval_s = job_interval_s
        self._gap_s = 1.0 / writes_per_s
        self._free_at = 0.0
        self._last: dict[str, float] = {}
        self._reserved: dict[str, float] = {}

    def want(self, key: str, now: float) -> float:
        """Reserve the time of the job's next write, unless it is reserved already. Returns the seconds until then."""
        if key not in self._reserved:
            moment = max(now, self._last.get(key, 0.0) + self._job_interval_s, self._free_at)
            self._free_at = moment + self._gap_s
            self._reserved[key] = moment
        return max(0.0, self._reserved[key] - now)

    def due(self, key: str, now: float) -> bool:
        """Returns whether the job's progress is due to be written."""
        return key in self._reserved and now >= self._reserved[key]

    def moment(self, key: str) -> float | None:
        """The reserved time of the job's write; None without one.

        An earlier reconcile must schedule another one for then.
        """
        return self._reserved.get(key)

    def wrote(self, key: str, now: float) -> None:
        """End the reservation, after a write or because there was nothing to write."""
        self._reserved.pop(key, None)
        self._last[key] = now

    def forget(self, key: str) -> None:
        """The job is gone."""
        self._reserved.pop(key, None)
        self._last.pop(key, None)


class ProgressBook:
    """The newest report of each job's current attempt, by job UID."""

    def __init__(self) -> None:
        """Nothing reported yet."""
        self._newest: dict[str, tuple[int, Progress]] = {}
        self._steps: dict[str, tuple[float, deque[float]]] = {}

    def report(
        self,
        job_uid: str,
        attempt: int,
        step: int,
        total_steps: int | None,
        metrics: dict[str, float] | None,
        now: float,
    ) -> bool:
        """Take a report of the current attempt; returns False for one of an older attempt.

        The largest step counts as progress. A report of a smaller one is a sign of life all the same: some programs
        count their steps from 1 in each epoch.

        Args:
            job_uid: UID of the job.
            attempt: the attempt that reports.
            step: the step it has done.
            total_steps: how many there are; None keeps what was reported before.
            metrics: the newest metrics; None keeps those that were reported before.
            now: seconds since the epoch.
        """
        known = self._newest.get(job_uid)
        if known is not None and known[0] > attempt:
            return False
        if known is not None and known[0] == attempt:  # a report of a checkpoint says nothing of these
            total_steps = known[1].total_steps if total_steps is None else total_steps
            metrics = known[1].metrics if metrics is None else metrics
        before = known[1].step if known is not None and known[0] == attempt else None
        self._newest[job_uid] = (
            attempt,
            Progress(
                step=step if before is None else max(step, before),
                total_steps=total_steps,
                metrics=metrics or {},
                time=datetime.fromtimestamp(now, UTC),
                attempt=attempt,
                step_seconds=self._step_seconds(job_uid, before, step, now),
            ),
        )
        return True

    def _step_seconds(self, job_uid: str, before: int | None, step: int, now: float) -> float | None:
        """The median time between reported steps, of earlier attempts too; None before the second step."""
        at, intervals = self._steps.get(job_uid, (now, deque[float](maxlen=_INTERVALS)))
        if before is not None and step > before:
            intervals.append(now - at)
        if before is None or step > before:
            self._steps[job_uid] = (now, intervals)
        return round(median(intervals), 3) if intervals else None

    def newest(self, job_uid: str, attempt: int) -> Progress | None:
        """The newest report of this attempt; None while it has not said anything."""
        known = self._newest.get(job_uid)
        return known[1] if known is not None and known[0] == attempt else None

    def forget(self, job_uid: str) -> None:
        """The job is gone."""
        self._newest.pop(job_uid, None)
        self._steps.pop(job_uid, None)
