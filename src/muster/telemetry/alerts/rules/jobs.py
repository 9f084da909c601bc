"""Alerts about training jobs."""

from __future__ import annotations

from typing import Final

from muster.telemetry.alerts.alert import Alert, RuleFile
from muster.telemetry.alerts.expressions import grew, lines

JOBS: Final = RuleFile(
    "jobs",
    (
        Alert(
            name="MusterJobsStalled",
            expr="max by (cluster) (muster_trainingjob_stalled) > 0",
            for_s=600,
            severity="warning",
            summary="{{ $value }} jobs hold their GPUs but report no steps.",
        ),
        Alert(
            name="MusterJobFaultsRepeat",
            expr="max by (cluster) (muster_trainingjob_repeated_faults) > 0",
            for_s=0,
            severity="warning",
            summary="{{ $value }} jobs had three or more faults within an hour.",
        ),
        Alert(
            name="MusterTimeToUsefulHigh",
            expr=lines("""
                histogram_quantile(0.9,
                  sum by (cluster, le) (increase(muster_trainingjob_time_to_useful_seconds_bucket[6h]))
                ) > $timeToUsefulSeconds
            """),
            for_s=300,
            severity="warning",
            summary="One in ten restarts takes more than {{ $value | humanizeDuration }} to the first later step.",
        ),
        Alert(
            name="MusterCheckpointsNotSaved",
            expr=lines("""
                sum by (cluster) (increase(muster_trainingjob_checkpoints_not_saved_total[30m])) > $checkpointsNotSaved
            """),
            for_s=0,
            severity="warning",
            summary="Jobs could not save about {{ $value | humanize }} checkpoints within 30 minutes.",
        ),
        Alert(
            name="MusterCheckpointsQuarantined",
            expr=f"count by (cluster, reason) {grew('muster_trainingjob_checkpoints_quarantined_total', '1h')}",
            for_s=0,
            severity="warning",
            summary="Ranks could not restore a confirmed checkpoint: {{ $labels.reason }}.",
        ),
    ),
)
