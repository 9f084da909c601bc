"""Metrics of training jobs."""

from __future__ import annotations

import weakref
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

API_WRITES_PER_FAULT: Final = 5
"""Status writes from a fault to useful work: Restarting, stopped, placed, Running, useful. Late evidence adds one.
Beside them a deletion and a creation for each slot that broke; nothing for one that did not, whatever the size."""

_STAGE_SECONDS: Final = (0.1, 0.25, 0.5, 1, 2, 3, 5, 8, 13, 21, 34, 55, 90, 180, 600, 3600)


class TrainingJobMetrics:
    """Metrics of one registry; get them with `training_job_metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Register them."""
        self.actions = Counter(
            "muster_trainingjob_actions_total",
            "Actions by kind and reason; in shadow mode those that would have been done.",
            ["action", "reason"],
            registry=registry,
        )
        self.faults = Counter(
            "muster_trainingjob_faults_total", "Faults by cause and rule.", ["cause", "rule"], registry=registry
        )
        self.useful_seconds = Histogram(
            "muster_trainingjob_time_to_useful_seconds",
            "From a fault to the first step beyond it.",
            buckets=_STAGE_SECONDS,
            registry=registry,
        )
        self.stage_seconds = Histogram(
            "muster_trainingjob_restart_stage_seconds",
            "From a fault to each stage of the restart.",
            ["stage"],
            buckets=_STAGE_SECONDS,
            registry=registry,
        )
        self.fault_writes = Histogram(
            "muster_trainingjob_api_writes_per_fault",
            "Writes from a fault to useful work, beside a create and a delete for each broken slot.",
            buckets=(1, 2, 3, 4, 5, 6, 8, 12, 20, 50),
            registry=registry,
        )
        self.stalled = Gauge(
            "muster_trainingjob_stalled", "Jobs whose running attempt reports no steps any more.", registry=registry
        )
        self.stalls = Counter(
            "muster_trainingjob_stalls_total", "Stalls that began; some of them ended the attempt.", registry=registry
        )
        self.members = Gauge("muster_trainingjob_members", "Supervisors that are known.", registry=registry)
        self.polls = Gauge("muster_trainingjob_open_polls", "Long polls that are open.", registry=registry)
        self.decide_seconds = Histogram(
            "muster_trainingjob_decide_duration_seconds",
            "Time in decide.",
            buckets=(0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5),
            registry=registry,
        )


_made: weakref.WeakKeyDictionary[CollectorRegistry, TrainingJobMetrics] = weakref.WeakKeyDictionary()


def training_job_metrics(registry: CollectorRegistry = REGISTRY) -> TrainingJobMetrics:
    """The metrics of `registry`, made on first use."""
    known = _made.get(registry)
    if known is None:
        known = _made[registry] = TrainingJobMetrics(registry)
    return known
