"""Metrics of preflight."""

from __future__ import annotations

import weakref
from collections import Counter as Count
from collections.abc import Mapping
from typing import Final, get_args

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from muster.fleet.preflight.config import Level
from muster.fleet.preflight.plan import State

OUTCOMES: Final = ("passed", "failed", "inconclusive", "refused")


class PreflightMetrics:
    """Metrics of one registry. Get them with `preflight_metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._nodes = Gauge(
            "muster_preflight_nodes", "Nodes with GPUs, by state of their tests.", ["state"], registry=registry
        )
        self.results = Counter(
            "muster_preflight_tests_total",
            "Tests that ended, by level and outcome.",
            ["level", "outcome"],
            registry=registry,
        )
        for level in get_args(Level):  # from 0 on, so that the first test of a level shows in `increase`
            for outcome in OUTCOMES:
                self.results.labels(str(level), outcome)
        self.seconds = Histogram(
            "muster_preflight_test_seconds",
            "Duration of tests.",
            ["level"],
            buckets=(10, 30, 60, 120, 240, 480, 960, 1920),
            registry=registry,
        )
        self.outliers = Gauge(
            "muster_preflight_outliers",
            "GPUs with a figure that is worse than those of GPUs of the same model.",
            registry=registry,
        )
        self.config_broken = Gauge(
            "muster_preflight_config_broken", "1 while the ConfigMap has errors.", registry=registry
        )

    def show(self, states: Mapping[str, State]) -> None:
        """Set the number of nodes in each state."""
        counts = Count(states.values())
        for state in State:
            if state is not State.NONE:
                self._nodes.labels(state).set(counts[state])


_made: weakref.WeakKeyDictionary[CollectorRegistry, PreflightMetrics] = weakref.WeakKeyDictionary()


def preflight_metrics(registry: CollectorRegistry = REGISTRY) -> PreflightMetrics:
    """Return the metrics of `registry`, making them on first use."""
    known = _made.get(registry)
    if known is None:
        known = _made[registry] = PreflightMetrics(registry)
    return known
