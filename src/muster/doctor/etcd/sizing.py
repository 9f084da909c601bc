"""Settings for etcd and kube-apiserver at a planned size. Pure: numbers in, settings out.

Sources: etcd docs ("Hardware recommendations", "System limits", "Tuning", "Maintenance"), Kubernetes docs ("Operating
etcd clusters for Kubernetes") and kube-apiserver's flags.
"""

from __future__ import annotations

import math
from typing import Final

import msgspec

GIB: Final = 2**30
QUOTA_DEFAULT: Final = 2 * GIB
QUOTA_MOST: Final = 8 * GIB
"""etcd warns at its start above this quota."""
EVENT_TTL_S: Final = 3600.0
"""kube-apiserver --event-ttl."""
COMPACTION_S: Final = 300.0
"""kube-apiserver --etcd-compaction-interval: old versions of objects are kept for up to two intervals."""
HEARTBEAT_S: Final = 10.0
"""Each kubelet renews its Lease this often (KubeletConfiguration, nodeStatusUpdateFrequency and leases)."""
NODE_BYTES, POD_BYTES, EVENT_BYTES, LEASE_BYTES = 16_384, 6_144, 1_024, 512
"""Sizes in etcd with room to grow: nodes with images and many labels, pods with volumes and annotations."""
OTHER_BYTES: Final = 64 * 2**20
"""Definitions, roles, ConfigMaps and Secrets of add-ons."""
CHURN: Final = 1 / 600
"""Writes of a pod per second: about five writes in a life of 50 minutes. Training pods live longer."""
SPLIT_EVENTS_PER_S: Final = 50.0
SPLIT_NODES: Final = 1000
"""From here on, Events should have an etcd of their own. GKE and Kubernetes' scale tests do the same."""
_FREE_SHARE: Final = 0.4
"""At most this much of the quota is planned to be used: the rest is for old versions and fragmentation."""


class Size(msgspec.Struct, frozen=True):
    """The planned size: nodes, pods, and Events per second."""

    nodes: int
    pods: int
    events_per_s: float


class Cluster(msgspec.Struct, frozen=True, rename="camel"):
    """Settings of one etcd cluster.

    Attributes:
        name: `main` or `events`.
        stored_bytes: expected size of current objects and of the versions that compaction has not removed yet.
        writes_per_second: expected writes.
        fsync_p99_seconds: limit of the 99th percentile of wal_fsync.
        commit_p99_seconds: limit of the 99th percentile of backend_commit.
        iops: sequential 8 KiB writes with fsync per second that the disk should do.
        disk_bytes: size of the disk.
        separate_wal_disk: whether the write-ahead log should have a disk of its own.
        memory_bytes: memory of a member.
        flags: flags of etcd, in order.
    """

    name: str
    stored_bytes: int
    writes_per_second: float
    fsync_p99_seconds: float
    commit_p99_seconds: float
    iops: int
    disk_bytes: int
    separate_wal_disk: bool
    memory_bytes: int
    flags: dict[str, str]


class Settings(msgspec.Struct, frozen=True, rename="camel"):
    """Settings for a planned size.

    Attributes:
        split_events: whether Events get an etcd of their own.
        clusters: the etcd clusters.
        apiserver_flags: flags of kube-apiserver about etcd.
        warnings: what does not fit.
    """

    split_events: bool
    clusters: tuple[Cluster, ...]
    apiserver_flags: dict[str, str]
    warnings: tuple[str, ...]


def settings_for(size: Size, events_url: str = "") -> Settings:
    """Return the settings.

    Args:
        size: the planned size.
        events_url: addresses of the etcd for Events, separated by semicolons; with them, Events are always split.
    """
    split = bool(events_url) or size.events_per_s >= SPLIT_EVENTS_PER_S or size.nodes >= SPLIT_NODES
    leases_per_s = size.nodes / HEARTBEAT_S
    pods_per_s = size.pods * CHURN
    kept_s = 2 * COMPACTION_S
    main_bytes = (
        size.nodes * (NODE_BYTES + LEASE_BYTES)
        + size.pods * POD_BYTES
        + OTHER_BYTES
        + kept_s * (leases_per_s * LEASE_BYTES + pods_per_s * POD_BYTES)
    )
    events_bytes = size.events_per_s * (EVENT_TTL_S + kept_s) * EVENT_BYTES
    main_writes, warnings = leases_per_s + pods_per_s, list[str]()
    if not split:
        main_bytes, main_writes = main_bytes + events_bytes, main_writes + size.events_per_s
    clusters = [_cluster("main", main_bytes, main_writes, warnings)]
    flags = {"etcd-compaction-interval": "5m0s"}
    if split:
        clusters.append(_cluster("events", events_bytes, size.events_per_s, warnings))
        flags["etcd-servers-overrides"] = f"/events#{events_url or 'https://EVENTS_HOST:2382'}"
    return Settings(split, tuple(clusters), flags, tuple(warnings))


def _cluster(name: str, stored: float, writes: float, warnings: list[str]) -> Cluster:
    wanted = stored / _FREE_SHARE
    quota = int(min(max(math.ceil(wanted / GIB) * GIB, QUOTA_DEFAULT), QUOTA_MOST))
    if wanted > QUOTA_MOST:
        warnings.append(
            f"etcd '{name}' is planned to hold {stored / GIB:.1f} GiB, and its quota should not be above 8 GiB: "
            "plan fewer or smaller objects, or a shorter --event-ttl for Events"
        )
    # A batch of raft entries shares an fsync, so a disk does fewer than one for each write.
    iops = max(500, math.ceil(writes / 2 / 100) * 100)
    flags = {
        "quota-backend-bytes": str(quota),
        "auto-compaction-retention": "0",
        "snapshot-count": "10000",
        "heartbeat-interval": "100",
        "election-timeout": "1000",
    }
    return Cluster(
        name=name,
        stored_bytes=int(stored),
        writes_per_second=round(writes, 1),
        fsync_p99_seconds=0.01,
        commit_p99_seconds=0.025,
        iops=iops,
        disk_bytes=max(20 * GIB, 4 * quota),
        separate_wal_disk=name == "main" and writes >= 500,
        memory_bytes=max(8 * GIB, 2 * quota),
        flags=flags,
    )
