"""Metrics of GPUs: used and free, time of backfilled gangs, idle while gangs wait, and delays by backfilled gangs."""

from __future__ import annotations

from collections.abc import Mapping

from muster.scheduler.explain.gpu_states import gpu_states
from muster.scheduler.explain.idle_gpus import IdleWhy, idle_gpus
from muster.scheduler.gangs.gang import Gang
from muster.scheduler.metrics import SchedulerMetrics
from muster.scheduler.plan import Plan
from muster.scheduler.pods.resources import gpus
from muster.scheduler.snapshot import Snapshot

SAMPLE_S = 15.0
"""Interval of counting GPUs. Between two counts, the time counts with the first of them."""


class GpuTime:
    """Adds GPU time to the metrics after each plan."""

    def __init__(self, metrics: SchedulerMetrics) -> None:
        self._metrics = metrics
        for why in IdleWhy:  # `rate` does not see a series' first value
            metrics.idle_gpu_seconds.labels(why.value)
        self._last: float | None = None
        self._next = 0.0
        self._backfilled = 0
        self._idle: Mapping[IdleWhy, int] = {}
        self._due: dict[str, float] = {}

    def look(self, snapshot: Snapshot, plan: Plan, now: float) -> None:
        """Record the time since the last plan.

        If the clock jumped, this adds at most one interval.
        """
        if self._last is not None:
            passed_s = min(max(0.0, now - self._last), SAMPLE_S)
            if self._backfilled:
                self._metrics.backfilled_gpu_seconds.inc(self._backfilled * passed_s)
            for why, count in self._idle.items():
                self._metrics.idle_gpu_seconds.labels(why.value).inc(count * passed_s)
        self._last = now
        if not 0.0 <= self._next - now <= SAMPLE_S:
            self._next = now + SAMPLE_S
            self._backfilled = sum(_gpus_of(gang) for gang in snapshot.backfilled.values())
            self._idle = idle_gpus(snapshot, plan)
            for state, count in gpu_states(snapshot).items():
                self._metrics.gpus.labels(state.value).set(count)
        self._delays(snapshot, plan, now)

    def _delays(self, snapshot: Snapshot, plan: Plan, now: float) -> None:
        """Measure from when a gang would have started without backfilled gangs until it may be bound."""
        for key in plan.delayed:
            self._due.setdefault(key, now)
        for key, due in list(self._due.items()):
            gang = snapshot.gangs.get(key)
            if gang is not None and (key in plan.delayed or _takes_over(gang)):
                continue
            del self._due[key]
            if gang is not None and gang.placement is not None:
                self._metrics.backfill_delay.observe(max(0.0, now - due))


def _takes_over(gang: Gang) -> bool:
    """Return whether the gang waits until others have left its nodes, or its Placement is being written."""
    return gang.writing or (gang.placement is not None and gang.placement.spec.preempting)


def _gpus_of(gang: Gang) -> int:
    return sum(gpus(cls.request) for _, cls in gang.takes())
