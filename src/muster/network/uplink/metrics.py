"""Metrics of the uplink's budget."""

from __future__ import annotations

import weakref

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from muster.network.uplink.plan import Plan, Shared
from muster.network.uplink.snapshot import Snapshot
from muster.network.uplink.wire import Reason


class UplinkMetrics:
    """Metrics of one registry. Get them with `uplink_metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.connections = Gauge(
            "muster_uplink_connections", "Agents that are connected to this hub.", registry=registry
        )
        self.refused = Counter(
            "muster_uplink_refused_total", "Connections that the hub refused, by reason.", ["reason"], registry=registry
        )
        self.dropped = Counter(
            "muster_uplink_dropped_total", "Connections of agents that ended, by reason.", ["reason"], registry=registry
        )
        for lost in ("lost", "malformed", "replaced", "slow", "unapplied"):  # `rate` does not see a series' first value
            self.dropped.labels(lost)
        for refusal in ("NoHello", *Reason):
            self.refused.labels(str(refusal))
        self.config_broken = Gauge(
            "muster_uplink_config_broken", "1 while the configuration has errors.", registry=registry
        )
        self.sent = Counter("muster_uplink_rates_sent_total", "Messages with new rates.", registry=registry)
        self.plan_seconds = Gauge(
            "muster_uplink_plan_seconds", "CPU time of the last plan of the allocator.", registry=registry
        )
        self._warming = Gauge(
            "muster_uplink_warming", "1 while a new leader has not heard enough nodes.", registry=registry
        )
        self._unresponsive = Gauge(
            "muster_uplink_unresponsive_bits_per_second",
            "What subjects use beyond limits that they do not respond to.",
            ["direction"],
            registry=registry,
        )
        by_direction = {
            "budget": "The budget.",
            "wanted": "The sum of all demands.",
            "allotted": "The sum of the limits of connected nodes.",
            "away": "The limits of nodes without a connection.",
        }
        self._rates = {
            name: Gauge(f"muster_uplink_{name}_bits_per_second", text, ["direction"], registry=registry)
            for name, text in by_direction.items()
        }
        self._teams = Gauge(
            "muster_uplink_team_bits_per_second",
            "What the subjects of a team may use together.",
            ["team", "direction"],
            registry=registry,
        )

    def show(self, snapshot: Snapshot, plan: Plan) -> None:
        """Show a plan."""
        self._warming.set(snapshot.warming)
        self._teams.clear()
        for way, name, shared in ((0, "in", plan.download), (1, "out", plan.upload)):
            self._show(name, snapshot.budget[way], snapshot.away[way], shared)
            self._unresponsive.labels(name).set(sum(each[way] for each in snapshot.excess.values()))

    def _show(self, name: str, budget: int, away: int, shared: Shared) -> None:
        values = {"budget": budget, "wanted": shared.wanted_bps, "allotted": shared.allotted_bps, "away": away}
        for key, value in values.items():
            self._rates[key].labels(name).set(value)
        for team, value in shared.teams_bps.items():
            self._teams.labels(team, name).set(value)


_known: weakref.WeakKeyDictionary[CollectorRegistry, UplinkMetrics] = weakref.WeakKeyDictionary()


def uplink_metrics(registry: CollectorRegistry = REGISTRY) -> UplinkMetrics:
    """Return the metrics of a registry; created on the first call."""
    found = _known.get(registry)
    if found is None:
        found = _known[registry] = UplinkMetrics(registry)
    return found
