"""Muster's own targets in Prometheus, by the label `job` that the chart's monitors give them."""

from __future__ import annotations

from typing import Final

from muster.telemetry.alerts.alert import Alert

JOBS: Final = ("admission", "agent", "cache", "controller", "guard", "network", "readcache", "readcache-node")
PARTS: Final = "|".join(JOBS)
"""A regular expression of all of them."""


def missing(job: str) -> Alert:
    """The alert that Prometheus has no target of `job`, so that all other alerts about it stay quiet."""
    return Alert(
        name="MusterTargetsMissing",
        expr=f'absent(up{{job="{job}"}})',
        for_s=900,
        severity="critical",
        summary="Prometheus scrapes no target of {{ $labels.job }}, so other alerts about it cannot fire.",
        job=job,
    )
