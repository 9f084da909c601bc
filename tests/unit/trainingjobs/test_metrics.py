"""Metrics of training jobs: how many there are in each phase."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from muster.trainingjobs.metrics import TrainingJobMetrics


def test_jobs_are_counted_by_phase_as_they_come_move_and_go() -> None:
    registry = CollectorRegistry()
    metrics = TrainingJobMetrics(registry)

    def counted(phase: str) -> float | None:
        return registry.get_sample_value("muster_trainingjob_jobs", {"phase": phase})

    assert counted("Failed") == 0, "a phase without jobs has a sample too"
    metrics.moved(None, "Pending")
    metrics.moved(None, "Pending")
    metrics.moved("Pending", "Pending")
    metrics.moved("Pending", "Running")
    assert (counted("Pending"), counted("Running")) == (1, 1)
    metrics.moved("Running", None)
    assert (counted("Pending"), counted("Running")) == (1, 0)
