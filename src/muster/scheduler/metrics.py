"""Metrics of the scheduler."""

from __future__ import annotations

import weakref
from collections import Counter as Counting
from collections.abc import Iterable

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

from muster.api.lending import TeamNodes
from muster.scheduler.explain.node_counts import NodeCount
from muster.scheduler.gangs.team_usage import TeamCounts
from muster.scheduler.plan import Plan
from muster.scheduler.reasons import NodeWhy, Why

_PLAN_SECONDS = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)

_DELAY_SECONDS = (1.0, 5.0, 15.0, 30.0, 60.0, 90.0, 120.0, 180.0, 240.0, 300.0, 600.0, 1800.0)


class SchedulerMetrics:
    """Metrics of one registry. Get them with `scheduler_metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.waiting = Gauge(
            "muster_scheduler_waiting_gangs", "Gangs that wait, by reason.", ["reason"], registry=registry
        )
        self.nodes = Gauge(
            "muster_scheduler_nodes",
            "Nodes, by the reason why the first waiting gang can or cannot use them.",
            ["reason"],
            registry=registry,
        )
        self.plan_seconds = Histogram(
            "muster_scheduler_plan_duration_seconds", "Duration of a plan.", buckets=_PLAN_SECONDS, registry=registry
        )
        self.binds = Counter(
            "muster_scheduler_binds_total", "Bind requests by outcome.", ["outcome"], registry=registry
        )
        self.placements = Counter(
            "muster_scheduler_placement_writes_total",
            "Writes of Placements, by operation and outcome.",
            ["operation", "outcome"],
            registry=registry,
        )
        self.releases = Counter(
            "muster_scheduler_releases_total", "Gangs released because they were not bound in time.", registry=registry
        )
        self.evictions = Counter(
            "muster_scheduler_evictions_total",
            "Evictions for gangs of higher priority, and dry runs of them.",
            ["operation", "outcome"],
            registry=registry,
        )
        for operation in ("try", "evict"):  # `rate` does not see a series' first value
            self.evictions.labels(operation, "admitted")
        self.shadow_actions = Counter(
            "muster_scheduler_shadow_actions_total",
            "Actions that the scheduler would take in shadow mode. Each action counts once.",
            ["action"],
            registry=registry,
        )
        self.team_nodes = Gauge(
            "muster_scheduler_team_nodes",
            "Nodes of each team: owned, used by the team, lent to other teams, borrowed from other teams.",
            ["team", "state"],
            registry=registry,
        )
        self.last_plan = Gauge(
            "muster_scheduler_last_plan_timestamp_seconds", "Time when a plan was last carried out.", registry=registry
        )
        self.backfilled_gpu_seconds = Counter(
            "muster_scheduler_backfilled_gpu_seconds_total",
            "GPU-seconds of gangs that were backfilled on reserved nodes.",
            registry=registry,
        )
        self.idle_gpu_seconds = Counter(
            "muster_scheduler_idle_while_waiting_gpu_seconds_total",
            "GPU-seconds of idle GPUs while gangs with GPUs waited for nodes, by the reason why none used them: "
            "reserved, fragmented, untested, quarantined, constraint.",
            ["reason"],
            registry=registry,
        )
        self.gpus = Gauge(
            "muster_scheduler_gpus",
            "GPUs by state: used by pods, free, or unusable because the node is not ready, cordoned, in quarantine or "
            "not tested.",
            ["state"],
            registry=registry,
        )
        self.backfill_asks = Counter(
            "muster_scheduler_backfill_asks_total",
            "Requests to backfilled gangs to leave reserved nodes.",
            registry=registry,
        )
        self.backfill_delay = Histogram(
            "muster_scheduler_backfill_delay_seconds",
            "How much later gangs started because others were backfilled on their nodes.",
            buckets=_DELAY_SECONDS,
            registry=registry,
        )
        self.config_broken = Gauge(
            "muster_scheduler_config_broken", "1 while the ConfigMap muster-scheduler has errors.", registry=registry
        )
        self._waiting: Counting[Why] | None = None
        self._teams: set[str] = set()
        self._counted: tuple[TeamCounts, int] | None = None

    def planned(self, plan: Plan, seconds: float, now: float) -> None:
        """Record a plan that took `seconds`."""
        self.plan_seconds.observe(seconds)
        self.last_plan.set(now)
        counts = Counting(reason.why for reason in plan.waiting.values())
        counts[Why.BEHIND] += plan.unreported
        if counts != self._waiting:
            for why in Why:
                self.waiting.labels(why.value).set(counts[why])
            self._waiting = counts

    def count_teams(self, teams: TeamCounts) -> None:
        """Record how teams use nodes; drop teams that neither own nor borrow any."""
        if self._counted == (teams, teams.stamp):
            return
        self._counted = (teams, teams.stamp)
        counts = teams.counts()
        for team, nodes in counts.items():
            for state, count in msgspec.structs.asdict(nodes).items():
                self.team_nodes.labels(team, state).set(count)
        for team in self._teams - counts.keys():
            for state in TeamNodes.__struct_fields__:
                self.team_nodes.remove(team, state)
        self._teams = set(counts)

    def count_nodes(self, counts: Iterable[NodeCount]) -> None:
        """Record node counts by reason for the head of the queue."""
        found: Counting[NodeWhy] = Counting()
        for each in counts:
            found[each.why] += each.count
        for why in NodeWhy:
            self.nodes.labels(why.value).set(found[why])


_made: weakref.WeakKeyDictionary[CollectorRegistry, SchedulerMetrics] = weakref.WeakKeyDictionary()


def scheduler_metrics(registry: CollectorRegistry = REGISTRY) -> SchedulerMetrics:
    """Return the metrics of `registry`; create them on first use."""
    known = _made.get(registry)
    if known is None:
        known = _made[registry] = SchedulerMetrics(registry)
    return known
