"""Metrics that are kept without a query that reads them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final

from muster.telemetry.usage.ledger import Pair

_OF_PROMETHEUS: Final = frozenset({"up", "ALERTS", "ALERTS_FOR_STATE"})
_FOR_MUSTER: Final = frozenset(
    {
        "kube_node_info",
        "kube_pod_info",
        "kubelet_node_name",
        "kubelet_running_pods",
        "node_uname_info",
        "process_resident_memory_bytes",
        "process_start_time_seconds",
        "prometheus_build_info",
        "prometheus_tsdb_compaction_chunk_samples_sum",
        "prometheus_tsdb_compaction_chunk_size_bytes_sum",
        "prometheus_tsdb_data_replay_duration_seconds",
        "prometheus_tsdb_head_max_time_seconds",
        "prometheus_tsdb_head_min_time_seconds",
        "prometheus_tsdb_head_samples_appended_total",
        "prometheus_tsdb_head_series",
        "prometheus_tsdb_head_series_created_total",
        "prometheus_tsdb_wal_storage_size_bytes",
    }
)
"""Metrics that `muster telemetry replay` and `cardinality` read."""
HISTOGRAM: Final = "histogram"
SUMMARY: Final = "summary"
PARTS: Final = ("_bucket", "_sum", "_count")
"""Names of the classic parts of a histogram end in these."""


def kept_because(name: str) -> str:
    """Return why a metric is kept in any case; "" if it is not."""
    if name in _OF_PROMETHEUS or name.startswith("scrape_"):
        return "Prometheus writes it itself"
    if name.startswith("muster_"):
        return "it is a metric of Muster"
    if name in _FOR_MUSTER:
        return "commands of Muster read it"
    return ""


def kept_with_family(pairs: Set[Pair], used: Set[Pair], types: Mapping[str, str]) -> set[Pair]:
    """Return metrics that are kept because another part of their histogram or summary is used in the same job.

    Only buckets and the quantiles of summaries are dropped alone, since they are most of the series. A native histogram
    has the name of its family. It is kept for queries of the classic parts, also if the job has none of these: a target
    that is updated sends one form instead of the other.

    Args:
        pairs: all metrics, each with a job.
        used: those that are read, and parts of native histograms that would be.
        types: of families: histogram, summary, ...
    """
    kept: set[Pair] = set()
    for family, job in {
        (name.removesuffix(part), job) for name, job in pairs | used for part in PARTS if name.endswith(part)
    }:
        summary = types.get(family) == SUMMARY
        alone = (family, job) if summary else (f"{family}_bucket", job)
        members = {(family, job), *((family + part, job) for part in PARTS)}
        read = members & used
        if read and (alone in pairs or types.get(family) == HISTOGRAM or read - pairs):
            kept |= (members & pairs) - {alone}
    return kept - used
