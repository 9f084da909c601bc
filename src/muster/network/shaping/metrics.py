"""Metrics of the node's side of the uplink budget. No label names a pod: their number has a limit."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge

from muster.network.shaping.shaper import PodUse
from muster.network.uplink.wire import Pair, PodDemand


class ShapingMetrics:
    """The metrics.

    Args:
        registry: receives them.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"muster_network_uplink_{name}", text, labels, registry=registry)

        self.errors = Counter(
            "muster_network_uplink_errors", "Passes that could not set the limits.", registry=registry
        )
        self._limit = gauge("limit_bits_per_second", "Sum of the limits that this node enforces.", "direction")
        self._used = gauge("used_bits_per_second", "Use of the budgeted class in the last second.", "direction")
        self._demand = gauge("demand_bits_per_second", "Estimated demand for the budgeted class.", "direction")
        self._backlog = gauge("backlog_bytes", "Bytes that wait for their limit.", "direction")
        self._drops = gauge("dropped_packets", "Packets dropped at the limits of present pods.", "direction")
        self._unresponsive = gauge("unresponsive_pods", "Pods that do not slow down when packets are dropped.")
        self._source = gauge("source", "1 for where the limits come from: lease, decay, static or dryRun.", "source")

    def set(
        self,
        total: Pair,
        demands: Mapping[str, PodDemand],
        use: Mapping[str, PodUse],
        unresponsive: int,
        source: str,
    ) -> None:
        """Set all values of a pass."""
        for at, way in enumerate(("in", "out")):
            self._limit.labels(way).set(total[at])
            self._used.labels(way).set(sum(each[at] for each in demands.values()))
            self._demand.labels(way).set(sum(each[at + 2] for each in demands.values()))
            self._backlog.labels(way).set(sum(each[at].backlog_bytes for each in use.values()))
            self._drops.labels(way).set(sum(each[at].drops for each in use.values()))
        self._unresponsive.set(unresponsive)
        self._source.clear()
        self._source.labels(source).set(1)
