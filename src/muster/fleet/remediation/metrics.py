"""Metrics of remediation."""

from __future__ import annotations

import weakref
from collections import Counter as Counts
from collections.abc import Mapping
from typing import get_args

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from muster.api.node_remediation import NodeRemediation, RemediationState
from muster.fleet.remediation.ladder.rungs import RUNGS

_BUCKETS_S = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600, 14400, 86400)


class RemediationMetrics:
    """Metrics of one registry. Get them with `remediation_metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._sessions = Gauge(
            "muster_remediation_nodes", "Nodes with a session, by rung and state.", ["rung", "phase"], registry=registry
        )
        self._held = Gauge(
            "muster_remediation_held_nodes",
            "Nodes whose next rung is delayed, by reason.",
            ["reason"],
            registry=registry,
        )
        self.rungs = Counter(
            "muster_remediation_rungs_total",
            "Rungs and states that sessions entered.",
            ["rung", "phase"],
            registry=registry,
        )
        self.actions = Counter(
            "muster_remediation_actions_total",
            "Actions on nodes, by outcome.",
            ["action", "outcome"],
            registry=registry,
        )
        self.stage = Histogram(
            "muster_remediation_stage_seconds",
            "Duration of each stage of a remediation. The first stage begins with the fault.",
            ["stage"],
            buckets=_BUCKETS_S,
            registry=registry,
        )
        self.config_broken = Gauge(
            "muster_remediation_config_broken", "1 while the ConfigMap has errors.", registry=registry
        )
        self._known_reasons: set[str] = set()
        self._shown: Counts[tuple[str, str]] | None = None

    def show(self, sessions: Mapping[str, NodeRemediation], held: Mapping[str, int]) -> None:
        """Set the numbers of nodes by rung, phase and reason."""
        counts: Counts[tuple[str, str]] = Counts(
            (each.status.rung, each.status.state or "Open") for each in sessions.values()
        )
        if counts != self._shown:
            self._shown = counts
            for rung in RUNGS:
                for state in get_args(RemediationState):
                    if state != "Released":
                        self._sessions.labels(rung, state).set(counts[rung, state])
        self._known_reasons |= held.keys()
        for reason in self._known_reasons:
            self._held.labels(reason).set(held.get(reason, 0))


_made: weakref.WeakKeyDictionary[CollectorRegistry, RemediationMetrics] = weakref.WeakKeyDictionary()


def remediation_metrics(registry: CollectorRegistry = REGISTRY) -> RemediationMetrics:
    """Return the metrics of `registry`, making them on first use."""
    known = _made.get(registry)
    if known is None:
        known = _made[registry] = RemediationMetrics(registry)
    return known
