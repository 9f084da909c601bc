"""Metrics of the teams controller."""

from __future__ import annotations

import weakref
from collections import Counter as Counting

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from muster.teams.plan import Plan, Standing, Why

_PLAN_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0)
_COUNTED = ("entitled", "owned", "healthy", "used", "lent", "borrowed", "pending", "by_hand")
CAUTIONS = (
    Why.OVER_ASKED, Why.SHORT, Why.BY_HAND, Why.UNKNOWN_TEAM, Why.NO_ALLOCATIONS, Why.DELETED, Why.INVALID,
)  # fmt: skip


class TeamsMetrics:
    """Metrics of one registry. Get them with `teams_metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.nodes = Gauge(
            "muster_teams_nodes",
            "Nodes of a team in a pool: entitled, owned, healthy, used, lent, borrowed, pending, by_hand.",
            ["team", "pool", "count"],
            registry=registry,
        )
        self.cautions = Gauge(
            "muster_teams_cautions",
            "Problems that an operator should look at, by reason.",
            ["reason"],
            registry=registry,
        )
        self.config_ok = Gauge(
            "muster_teams_config_ok",
            "1 while the ConfigMap is valid and has an allocation. While it is 0, nodes keep their owners.",
            registry=registry,
        )
        self.writes = Counter(
            "muster_teams_node_writes_total", "Writes of nodes, by reason and outcome.", ["why", "outcome"],
            registry=registry,
        )  # fmt: skip
        self.plan_seconds = Histogram(
            "muster_teams_plan_duration_seconds", "Duration of a plan.", buckets=_PLAN_SECONDS, registry=registry
        )
        self.last_plan = Gauge(
            "muster_teams_last_plan_timestamp_seconds", "Time of the newest plan.", registry=registry
        )
        self._shown: dict[tuple[str, str], Standing] = {}

    def planned(self, plan: Plan, seconds: float, now: float, *, config_ok: bool) -> None:
        """Record a plan that took `seconds`."""
        self.plan_seconds.observe(seconds)
        self.last_plan.set(now)
        self.config_ok.set(config_ok)
        counts = Counting(each.why for each in plan.cautions)
        for why in CAUTIONS:
            self.cautions.labels(why.value).set(counts[why])
        fresh = {(each.team, each.pool): each for each in plan.standings}
        for key in self._shown.keys() - fresh.keys():
            for name in _COUNTED:
                self.nodes.remove(*key, name)
        for key, standing in fresh.items():
            if self._shown.get(key) != standing:
                for name in _COUNTED:
                    self.nodes.labels(*key, name).set(getattr(standing, name))
        self._shown = fresh


_made: weakref.WeakKeyDictionary[CollectorRegistry, TeamsMetrics] = weakref.WeakKeyDictionary()


def teams_metrics(registry: CollectorRegistry = REGISTRY) -> TeamsMetrics:
    """Return the metrics of `registry`; create them on first use."""
    known = _made.get(registry)
    if known is None:
        known = _made[registry] = TeamsMetrics(registry)
    return known
