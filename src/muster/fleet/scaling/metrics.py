"""Metrics of scaling."""

from __future__ import annotations

import weakref
from collections import Counter as Counting

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from muster.fleet.scaling.plan import Outcome, Plan
from muster.fleet.scaling.pool_memory import blocked
from muster.fleet.scaling.snapshot import Fault, View
from muster.fleet.scaling.states import NodeState


class ScalingMetrics:
    """Metrics of one registry. Get them with `scaling_metrics`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.nodes = Gauge(
            "muster_scaling_nodes", "Nodes of each pool, by state.", ["pool", "state"], registry=registry
        )
        self.size = Gauge(
            "muster_scaling_pool_size", "The last size that was requested for a pool.", ["pool"], registry=registry
        )
        self.blocked = Gauge(
            "muster_scaling_pool_blocked",
            "1 while no requests are made to a pool because of this fault.",
            ["pool", "fault"],
            registry=registry,
        )
        self.gangs = Gauge(
            "muster_scaling_gangs", "Gangs that lack nodes, by outcome of the plan.", ["outcome"], registry=registry
        )
        self.actions = Counter(
            "muster_scaling_actions_total",
            "Actions on pools, by outcome.",
            ["pool", "action", "outcome"],
            registry=registry,
        )
        self.faults = Counter(
            "muster_scaling_provider_errors_total",
            "Requests that a provider refused, by fault.",
            ["pool", "fault"],
            registry=registry,
        )
        self.last_plan = Gauge(
            "muster_scaling_last_plan_timestamp_seconds", "Time of the newest plan.", registry=registry
        )
        self.config_valid = Gauge(
            "muster_scaling_config_valid", "1 if the ConfigMap is valid, 0 if it has errors.", registry=registry
        )
        self._pools: set[str] = set()

    def planned(self, view: View, plan: Plan, now: float) -> None:
        """Record a plan."""
        self.last_plan.set(now)
        counts = Counting((key.partition("/")[0], each.state) for key, each in plan.tracked.items())
        for pool in self._pools - {pool.name for pool in view.pools}:
            self._forget(pool)
        self._pools = {pool.name for pool in view.pools}
        for name in self._pools:
            memory = plan.memory[name]
            for state in NodeState:
                self.nodes.labels(name, state.value).set(counts[name, state])
            for fault in Fault:
                self.blocked.labels(name, fault.value).set(blocked(memory, now) and memory.fault is fault)
            self.size.labels(name).set(max(0, memory.asked))
        outcomes = Counting(answer.outcome for answer in plan.answers.values())
        for outcome in Outcome:
            self.gangs.labels(outcome.value).set(outcomes[outcome])

    def _forget(self, pool: str) -> None:
        self.size.remove(pool)
        for state in NodeState:
            self.nodes.remove(pool, state.value)
        for fault in Fault:
            self.blocked.remove(pool, fault.value)


_made: weakref.WeakKeyDictionary[CollectorRegistry, ScalingMetrics] = weakref.WeakKeyDictionary()


def scaling_metrics(registry: CollectorRegistry = REGISTRY) -> ScalingMetrics:
    """Return the metrics of `registry`, making them on first use."""
    known = _made.get(registry)
    if known is None:
        known = _made[registry] = ScalingMetrics(registry)
    return known
