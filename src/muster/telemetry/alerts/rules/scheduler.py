"""Alerts about the scheduler."""

from __future__ import annotations

from typing import Final

from muster.telemetry.alerts.alert import Alert, RuleFile
from muster.telemetry.alerts.expressions import lines

SCHEDULER: Final = RuleFile(
    "scheduler",
    (
        Alert(
            name="MusterSchedulerNotPlanning",
            expr=lines("""
                time() - max by (cluster, namespace) (muster_scheduler_last_plan_timestamp_seconds > 0)
                > $schedulerStaleSeconds
            """),
            for_s=60,
            severity="critical",
            summary="The scheduler has not planned for {{ $value | humanizeDuration }}.",
        ),
        Alert(
            name="MusterGangsWaitWithIdleGpus",
            expr=lines("""
                sum by (cluster, reason) (
                  rate(muster_scheduler_idle_while_waiting_gpu_seconds_total{reason!="reserved"}[30m])
                ) > $idleGpus
            """),
            for_s=1800,
            severity="warning",
            summary="{{ $value | humanize }} GPUs are idle while gangs wait. Reason: {{ $labels.reason }}.",
        ),
        Alert(
            name="MusterPlacementsFail",
            expr=lines("""
                sum by (cluster) (increase(muster_scheduler_releases_total[30m])) > $gangsReleased
                or sum by (cluster) (rate(muster_scheduler_binds_total{outcome!="bound"}[30m]))
                / sum by (cluster) (rate(muster_scheduler_binds_total[30m])) > $bindsFailedShare
            """),
            for_s=300,
            severity="warning",
            summary="The API server refuses binds, or gangs were released because they were not bound in time.",
        ),
    ),
)
