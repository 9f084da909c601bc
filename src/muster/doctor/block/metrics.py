"""Metrics of blocks."""

from __future__ import annotations

import weakref

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge


class BlockMetrics:
    """Metrics of one registry. Get them with `block_metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.active = Gauge("muster_blocks", "Accounts that are blocked at the API server.", registry=registry)
        self.overdue = Gauge(
            "muster_blocks_overdue", "Blocks that have ended and could not be removed yet.", registry=registry
        )
        self.removed = Counter("muster_blocks_removed", "Blocks removed because they ended.", registry=registry)


_made: weakref.WeakKeyDictionary[CollectorRegistry, BlockMetrics] = weakref.WeakKeyDictionary()


def block_metrics(registry: CollectorRegistry = REGISTRY) -> BlockMetrics:
    """Return the metrics of `registry`, making them on first use."""
    known = _made.get(registry)
    if known is None:
        known = _made[registry] = BlockMetrics(registry)
    return known
