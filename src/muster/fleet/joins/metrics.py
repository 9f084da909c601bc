"""Metrics of joins."""

from __future__ import annotations

import weakref

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from muster.fleet.joins.pace import Pace, Verdict
from muster.fleet.joins.plan import Plan


class JoinMetrics:
    """Metrics of one registry. Get them with `join_metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._pace = Gauge(
            "muster_joins_pace_nodes",
            "Number of nodes that the controller may open in the present period.",
            registry=registry,
        )
        self._verdict = Gauge(
            "muster_joins_verdict",
            "1 for the present verdict about the load of the API server, 0 for the others.",
            ["verdict"],
            registry=registry,
        )
        self._waiting = Gauge("muster_joins_waiting_nodes", "Ready nodes that wait to be opened.", registry=registry)
        self._coming = Gauge("muster_joins_coming_nodes", "Joining nodes that are not Ready yet.", registry=registry)
        self.opened = Counter(
            "muster_joins_opened_total", "Nodes that the controller opened to pods.", registry=registry
        )
        self.scrapes = Counter(
            "muster_joins_scrapes_total",
            "Readings of the API server's metrics, by outcome.",
            ["outcome"],
            registry=registry,
        )
        self.config_broken = Gauge("muster_joins_config_broken", "1 while the ConfigMap has errors.", registry=registry)

    def show(self, pace: Pace, plan: Plan) -> None:
        """Set the pace and the number of waiting nodes."""
        self._pace.set(pace.allowance)
        for verdict in Verdict:
            self._verdict.labels(verdict).set(verdict is pace.verdict)
        self._waiting.set(plan.waiting)
        self._coming.set(plan.coming)


_made: weakref.WeakKeyDictionary[CollectorRegistry, JoinMetrics] = weakref.WeakKeyDictionary()


def join_metrics(registry: CollectorRegistry = REGISTRY) -> JoinMetrics:
    """Return the metrics of `registry`, making them on first use."""
    known = _made.get(registry)
    if known is None:
        known = _made[registry] = JoinMetrics(registry)
    return known
