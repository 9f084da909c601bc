"""Alerts about the read cache."""

from __future__ import annotations

from typing import Final

from muster.telemetry.alerts.alert import Alert, RuleFile
from muster.telemetry.alerts.expressions import grew, lines
from muster.telemetry.alerts.targets import missing

_DIFFERENT: Final = 'muster_readcache_self_checks_total{outcome="different"}'

READCACHE: Final = RuleFile(
    "readcache",
    (
        missing("readcache"),
        Alert(
            name="MusterReadCacheStale",
            expr=lines("""
                max by (cluster, job, resource) (muster_readcache_age_seconds) > $readCacheStaleSeconds
            """),
            for_s=120,
            severity="critical",
            summary="{{ $labels.job }} has not heard about {{ $labels.resource }} for {{ $value | humanizeDuration }}.",
        ),
        Alert(
            name="MusterReadCacheFails",
            expr=lines("""
                (
                  sum by (cluster, job) (rate(muster_readcache_failed_requests_total[10m]))
                  + sum by (cluster, job) (rate(muster_readcache_unproven_total[10m]))
                  + sum by (cluster, job) (rate(muster_readcache_refused_connections_total[10m]))
                ) / sum by (cluster, job) (rate(muster_readcache_requests_total[10m])) > $readCacheFailedShare
            """),
            for_s=300,
            severity="warning",
            summary="{{ $labels.job }} fails or refuses {{ $value | humanizePercentage }} of its requests.",
        ),
        Alert(
            name="MusterReadCacheDiffers",
            expr=f"count by (cluster, job, resource) {grew(_DIFFERENT, '1h')}",
            for_s=0,
            severity="critical",
            summary="{{ $labels.job }} held {{ $labels.resource }} that differ from the API server's.",
        ),
    ),
)
