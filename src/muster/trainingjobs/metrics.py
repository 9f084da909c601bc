"""Metrics of training jobs."""

from __future__ import annotations

import weakref
from typing import Final, get_args

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from muster.api.training_job_status import Phase, RestoreProblem

_STAGE_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2, 3, 5, 8, 13, 21, 34, 55, 90, 180, 600, 3600)


class TrainingJobMetrics:
    """Metrics of one registry; get them with `training_job_metrics`.

    Known label values have a sample from the start: `rate` and `increase` do not see the first value of a series.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them."""
        self.actions = Counter(
            "muster_trainingjob_actions_total",
            "Actions by kind and reason; in shadow mode those that the controller would take.",
            ["action", "reason"],
            registry=registry,
        )
        self.faults = Counter(
            "muster_trainingjob_faults_total",
            "Faults of jobs, by cause and rule.",
            ["cause", "rule"],
            registry=registry,
        )
        self.useful_seconds = Histogram(
            "muster_trainingjob_time_to_useful_seconds",
            "Time from a fault to the first later step.",
            buckets=_STAGE_SECONDS,
            registry=registry,
        )
        self.stage_seconds = Histogram(
            "muster_trainingjob_restart_stage_seconds",
            "Time from a fault to each stage of the restart.",
            ["stage"],
            buckets=_STAGE_SECONDS,
            registry=registry,
        )
        self.fault_writes = Histogram(
            "muster_trainingjob_api_writes_per_fault",
            "Writes of the job's status from a fault to useful work. Creates and deletes of pods do not count.",
            buckets=(1, 2, 3, 4, 5, 6, 8, 12, 20, 50),
            registry=registry,
        )
        self._jobs = Gauge("muster_trainingjob_jobs", "Jobs by phase.", ["phase"], registry=registry)
        for phase in get_args(Phase):
            self._jobs.labels(phase)
        self.repeated_faults = Gauge(
            "muster_trainingjob_repeated_faults",
            "Unfinished jobs that had 3 or more faults within the last hour.",
            registry=registry,
        )
        self.stalled = Gauge("muster_trainingjob_stalled", "Jobs whose running attempt is stalled.", registry=registry)
        self.stalls = Counter(
            "muster_trainingjob_stalls_total", "Stalls that began. Some of them ended the attempt.", registry=registry
        )
        self.members = Gauge(
            "muster_trainingjob_members", "Supervisors that have contacted this process.", registry=registry
        )
        self.polls = Gauge("muster_trainingjob_open_polls", "Open long polls of supervisors.", registry=registry)
        self.save_blocked_seconds = Histogram(
            "muster_trainingjob_checkpoint_blocked_seconds",
            "Time for which the save of a confirmed checkpoint stopped the training, as the program reported it.",
            buckets=_STAGE_SECONDS,
            registry=registry,
        )
        self.save_upload_seconds = Histogram(
            "muster_trainingjob_checkpoint_upload_seconds",
            "Time in which the shards of a confirmed checkpoint reached the store, as the program reported it.",
            buckets=_STAGE_SECONDS,
            registry=registry,
        )
        self.not_saved = Counter(
            "muster_trainingjob_checkpoints_not_saved_total",
            "Reports of checkpoints that could not be saved; at most one for each job in 30 s counts.",
            registry=registry,
        )
        self.quarantined = Counter(
            "muster_trainingjob_checkpoints_quarantined_total",
            "Confirmed checkpoints that ranks could not restore, by what was wrong.",
            ["reason"],
            registry=registry,
        )
        for reason in get_args(RestoreProblem):
            self.quarantined.labels(reason)
        self.restored_bytes = Counter(
            "muster_trainingjob_restored_bytes_total",
            "Bytes of checkpoints that attempts have restored, by where the nodes read them: bucket, peer or disk.",
            ["source"],
            registry=registry,
        )
        for source in ("bucket", "peer", "disk"):
            self.restored_bytes.labels(source)
        self.decide_seconds = Histogram(
            "muster_trainingjob_decide_duration_seconds",
            "Duration of a decision about one job.",
            buckets=(0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5),
            registry=registry,
        )

    def moved(self, before: Phase | None, after: Phase | None) -> None:
        """Count a job that changed its phase; None stands for a job that does not exist."""
        if before == after:
            return
        if before is not None:
            self._jobs.labels(before).dec()
        if after is not None:
            self._jobs.labels(after).inc()

    def saved(self, blocked_s: float | None, upload_s: float | None) -> None:
        """Observe the save of a confirmed checkpoint, as far as the program reported it."""
        if blocked_s is not None:
            self.save_blocked_seconds.observe(blocked_s)
        if upload_s is not None:
            self.save_upload_seconds.observe(upload_s)


_made: weakref.WeakKeyDictionary[CollectorRegistry, TrainingJobMetrics] = weakref.WeakKeyDictionary()


def training_job_metrics(registry: CollectorRegistry = REGISTRY) -> TrainingJobMetrics:
    """The metrics of `registry`, made on first use."""
    known = _made.get(registry)
    if known is None:
        known = _made[registry] = TrainingJobMetrics(registry)
    return known
