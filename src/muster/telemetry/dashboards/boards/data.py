"""The dashboard of the data caches of nodes."""

from __future__ import annotations

from typing import Final

from muster.telemetry.dashboards.dashboard import CLUSTER, JOB, NAMESPACE, Dashboard, Row
from muster.telemetry.dashboards.expressions import grown, or_zero, rate, series, share, top
from muster.telemetry.dashboards.panel import bad_from, graph, ranked, stat

_CACHE: Final = 'job="cache"'
_OF_JOB: Final = 'job=~"$jobname"'
"""In the metrics of readers, `job` is the training job: the chart's monitor honors the label."""
_BLOCKS: Final = series("muster_cache_blocks_total")

DATA: Final = Dashboard(
    name="data",
    title="Data",
    description="Whether jobs read their data from nodes or from the bucket, and whether caches and copies of "
    "checkpoints work.",
    variables=(CLUSTER, NAMESPACE, JOB),
    rows=(
        Row(
            "Now",
            (
                stat(
                    "Caches",
                    "Data caches that Prometheus scrapes.",
                    f"count({series('up', _CACHE)} == 1)",
                ),
                stat(
                    "Hits",
                    "Share of blocks that were on the node already.",
                    share(or_zero(rate(series("muster_cache_blocks_total", 'result="hit"'))), rate(_BLOCKS)),
                    "percentunit",
                ),
                stat(
                    "Nodes without their disk",
                    "Caches that do not use their disk, because it is slow or fails. Reads go to peers and the bucket.",
                    f"sum({series('muster_cache_bypassed')})",
                    steps=bad_from(1),
                    alerts=("MusterDataCacheBypassed",),
                ),
                stat(
                    "Damaged files",
                    "Files in the time range that did not match their checksum. They were removed and read again.",
                    grown(series("muster_cache_corrupt_files_total")),
                    steps=bad_from(1),
                    decimals=0,
                    alerts=("MusterDataCacheCorrupt",),
                ),
                stat(
                    "Used space",
                    "Bytes of all caches, as a share of their limits.",
                    share(f"sum({series('muster_cache_used_bytes')})", f"sum({series('muster_cache_size_bytes')})"),
                    "percentunit",
                    most=1,
                ),
                stat(
                    "Checkpoint shards without a copy",
                    "Share of the copies to other nodes in the time range that failed.",
                    share(
                        or_zero(grown(series("muster_cache_shard_copies_total", 'outcome!="ok"'))),
                        or_zero(grown(series("muster_cache_shard_copies_total"))),
                    ),
                    "percentunit",
                    bad_from(0.05, 0.2),
                    alerts=("MusterShardCopiesFail",),
                ),
            ),
        ),
        Row(
            "Reads",
            (
                ranked(
                    "Reads by source",
                    "Bytes per second that readers got, now. Much from the bucket after the first epoch means "
                    "that the cache is too small.",
                    rate(series("muster_cache_read_bytes_total", _OF_JOB), "source"),
                    "{{source}}",
                    "Bps",
                ),
                ranked(
                    "Jobs that read most",
                    "Bytes per second, now.",
                    top(15, rate(series("muster_cache_read_bytes_total", _OF_JOB), "job")),
                    "{{job}}",
                    "Bps",
                ),
                ranked(
                    "Readers",
                    "Connections of readers, now, for the jobs with most of them.",
                    top(15, f"sum by (job) ({series('muster_cache_readers', _OF_JOB)})"),
                    "{{job}}",
                ),
                graph(
                    "Blocks",
                    "Blocks that readers asked for, by whether they were on the node.",
                    (rate(_BLOCKS, "result"), "{{result}}"),
                    unit="ops",
                    stacked=True,
                ),
                graph(
                    "Downloads and connections",
                    "Downloads that run, open connections of readers, and of other nodes.",
                    (f"sum({series('muster_cache_downloads')})", "downloads"),
                    (f"sum({series('muster_cache_connections')})", "readers"),
                    (f"sum({series('muster_cache_peer_connections')})", "other nodes"),
                ),
                graph(
                    "Requests to other nodes",
                    "By outcome: ok, or why the next source was asked.",
                    (or_zero(rate(series("muster_cache_peer_requests_total"), "outcome")), "{{outcome}}"),
                    unit="reqps",
                ),
            ),
        ),
        Row(
            "Space",
            (
                graph(
                    "Used bytes",
                    "Bytes of cached blocks and checkpoint shards, and of blocks in memory while a disk is not used.",
                    (f"sum by (area) ({series('muster_cache_used_bytes')})", "{{area}}"),
                    (f"sum({series('muster_cache_memory_bytes')})", "in memory"),
                    unit="bytes",
                    stacked=True,
                ),
                ranked(
                    "Nodes with least free space",
                    "Free bytes of the cache's file system. Below the floor, blocks are removed.",
                    f"bottomk(10, min by (instance) ({series('muster_cache_free_bytes')}))",
                    "{{instance}}",
                    "bytes",
                ),
                graph(
                    "Removed bytes and files",
                    "Bytes per second that were removed for the size limit or the free-space floor, and files.",
                    (rate(series("muster_cache_evicted_bytes_total")), "removed bytes/s"),
                    (f"sum by (area) ({series('muster_cache_files')})", "files: {{area}}"),
                ),
            ),
        ),
        Row(
            "Faults and checkpoint shards",
            (
                graph(
                    "Disks and peers",
                    "How often disks became slow or failed per hour, and nodes that other nodes do not ask.",
                    (f"3600 * {rate(series('muster_cache_bypasses_total'))}", "disks per hour"),
                    (f"sum({series('muster_cache_peers_skipped')})", "skipped nodes"),
                    alerts=("MusterDataCacheBypassed",),
                ),
                ranked(
                    "Copies of checkpoint shards",
                    "Copies for other nodes in the time range: ok, or why the copy failed.",
                    or_zero(grown(series("muster_cache_shard_copies_total"), "outcome")),
                    "{{outcome}}",
                    decimals=0,
                    alerts=("MusterShardCopiesFail",),
                ),
                ranked(
                    "Restored checkpoint shards",
                    "Shards that other nodes were asked for in the time range: ok, or why the bucket was read.",
                    or_zero(grown(series("muster_cache_shard_restores_total"), "outcome")),
                    "{{outcome}}",
                    decimals=0,
                ),
            ),
        ),
    ),
)
