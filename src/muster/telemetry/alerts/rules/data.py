"""Alerts about the data cache."""

from __future__ import annotations

from typing import Final

from muster.telemetry.alerts.alert import Alert, RuleFile
from muster.telemetry.alerts.expressions import lines
from muster.telemetry.alerts.targets import missing

DATA: Final = RuleFile(
    "data",
    (
        missing("cache"),
        Alert(
            name="MusterDataCacheBypassed",
            expr="count by (cluster) (muster_cache_bypassed == 1)",
            for_s=600,
            severity="warning",
            summary="The data cache does not use its disk on {{ $value }} nodes, because it is slow or fails.",
        ),
        Alert(
            name="MusterDataCacheCorrupt",
            expr="count by (cluster) (increase(muster_cache_corrupt_files_total[1h]) > 0)",
            for_s=0,
            severity="warning",
            summary="Files of the data cache did not match their checksum on {{ $value }} nodes.",
        ),
        Alert(
            name="MusterShardCopiesFail",
            expr=lines("""
                sum by (cluster) (rate(muster_cache_shard_copies_total{outcome!~"ok|no-partner|no-reader"}[30m]))
                / sum by (cluster) (rate(muster_cache_shard_copies_total[30m])) > $shardCopiesFailedShare
            """),
            for_s=900,
            severity="warning",
            summary="{{ $value | humanizePercentage }} of the checkpoint shards have no copy on another node.",
        ),
    ),
)
