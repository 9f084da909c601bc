"""Metrics of node counts for the head of the queue: the same counts that `muster explain` prints."""

from __future__ import annotations

from muster.scheduler.explain.node_counts import census
from muster.scheduler.memo import recall
from muster.scheduler.metrics import SchedulerMetrics
from muster.scheduler.plan import Plan
from muster.scheduler.reasons import Why
from muster.scheduler.snapshot import Snapshot

AGAIN_S = 15.0
"""Interval of counting, which visits every node in use."""
_WANTS_NODES = frozenset({Why.NOT_ENOUGH_NODES, Why.MORE_THAN_THE_CLUSTER, Why.TOO_MANY_WAYS})


class HeadNodes:
    """Counts nodes by reason at intervals."""

    def __init__(self, metrics: SchedulerMetrics) -> None:
        self._metrics = metrics
        self._next = 0.0

    def look(self, snapshot: Snapshot, plan: Plan, now: float) -> None:
        """Update the counts every `AGAIN_S`; clear them if no gang waits for nodes."""
        if now < self._next:
            return
        self._next = now + AGAIN_S
        waiting = [snapshot.gangs[key] for key, reason in plan.waiting.items() if reason.why in _WANTS_NODES]
        head = min(waiting, key=lambda gang: gang.order, default=None)
        if head is None or not head.counts:
            self._metrics.count_nodes(())
            return
        cls = max(head.counts, key=lambda cls: (head.counts[cls], -cls.number))
        beside = head.nodes_beside(head.pending)
        recalled = recall(snapshot, now, plan.memo)
        self._metrics.count_nodes(census(snapshot, recalled, cls, reserved={}, beside=beside, gang=head, now=now))
