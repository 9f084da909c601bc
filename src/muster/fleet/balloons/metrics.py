"""Metrics of balloons."""

from __future__ import annotations

import weakref
from collections.abc import Mapping

from prometheus_client import REGISTRY, CollectorRegistry, Gauge

from muster.fleet.balloons.plan import PoolState
from muster.fleet.balloons.snapshot import NodeUse


class BalloonMetrics:
    """Metrics of one registry. Get them with `balloon_metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._balloons = Gauge("muster_balloons", "Balloons of a pool, by state.", ["pool", "state"], registry=registry)
        self._nodes = Gauge(
            "muster_balloon_nodes",
            "Nodes of a pool, by whether a balloon can use them, and why not.",
            ["pool", "use"],
            registry=registry,
        )
        self.config_broken = Gauge(
            "muster_balloons_config_broken", "1 while the ConfigMap has errors.", registry=registry
        )

    def show(self, pools: Mapping[str, PoolState]) -> None:
        """Set the values of these pools and remove those of others."""
        self._balloons.clear()
        self._nodes.clear()
        for name, state in pools.items():
            for key in ("configured", "replicas", "placed", "waiting"):
                self._balloons.labels(name, key).set(getattr(state, key))
            for use in NodeUse:
                self._nodes.labels(name, use).set(state.nodes.get(use, 0))


_made: weakref.WeakKeyDictionary[CollectorRegistry, BalloonMetrics] = weakref.WeakKeyDictionary()


def balloon_metrics(registry: CollectorRegistry = REGISTRY) -> BalloonMetrics:
    """Return the metrics of `registry`, making them on first use."""
    known = _made.get(registry)
    if known is None:
        known = _made[registry] = BalloonMetrics(registry)
    return known
