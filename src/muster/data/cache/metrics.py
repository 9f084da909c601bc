"""Metrics of the node cache, read from its parts when they are scraped."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from muster.data.cache.accounts import OTHER, SOURCES, Account
from muster.data.cache.files import AREAS
from muster.data.cache.node import Node
from muster.kube.described import Described, family

MAX_LABELS: Final = 64
"""Jobs with series of their own: those whose readers came last. The series of another job end."""


READ: Final = Described(
    "muster_cache_read_bytes_total", "counter", ("job", "source"), "Bytes that readers got, by job and source."
)
READERS: Final = Described("muster_cache_readers", "gauge", ("job",), "Connections of readers, by job.")
BLOCKS: Final = Described(
    "muster_cache_blocks_total", "counter", ("result",), "Blocks that readers asked for, by result: hit or miss."
)
SIZE: Final = Described("muster_cache_size_bytes", "gauge", (), "Limit of the cache's files.")
USED: Final = Described("muster_cache_used_bytes", "gauge", ("area",), "Bytes of the cache's files: blocks and shards.")
FILES: Final = Described("muster_cache_files", "gauge", ("area",), "Files of the cache: blocks and shards.")
FREE: Final = Described("muster_cache_free_bytes", "gauge", (), "Free bytes of the cache's file system.")
MEMORY: Final = Described("muster_cache_memory_bytes", "gauge", (), "Blocks in memory while the disk is not used.")
CONNECTIONS: Final = Described("muster_cache_connections", "gauge", (), "Open connections to the cache's sockets.")
DOWNLOADS: Final = Described("muster_cache_downloads", "gauge", (), "Downloads that run now.")
BYPASSED: Final = Described("muster_cache_bypassed", "gauge", (), "1 while the disk is slow or fails.")
BYPASSES: Final = Described("muster_cache_bypasses_total", "counter", (), "How often the disk became slow or failed.")
CORRUPT: Final = Described(
    "muster_cache_corrupt_files_total", "counter", (), "Files removed because they did not match their checksum."
)
EVICTED: Final = Described(
    "muster_cache_evicted_bytes_total", "counter", (), "Bytes removed for the size limit or the free-space floor."
)
PEER_REQUESTS: Final = Described(
    "muster_cache_peer_requests_total",
    "counter",
    ("outcome",),
    "Requests to other nodes for blocks, by outcome: ok, or why the next source was asked.",
)
PEERS_SKIPPED: Final = Described(
    "muster_cache_peers_skipped", "gauge", (), "Nodes that are not asked now, because they failed or were slow."
)
PEER_CONNECTIONS: Final = Described("muster_cache_peer_connections", "gauge", (), "Open connections from other nodes.")
SHARD_COPIES: Final = Described(
    "muster_cache_shard_copies_total",
    "counter",
    ("outcome",),
    "Copies of checkpoint shards for other nodes, by outcome: ok, or why there is no copy.",
)
SHARD_RESTORES: Final = Described(
    "muster_cache_shard_restores_total",
    "counter",
    ("outcome",),
    "Checkpoint shards that other nodes were asked for, by outcome: ok, or why the bucket was read.",
)
METRICS: Final = (
    PEER_REQUESTS,
    PEERS_SKIPPED,
    PEER_CONNECTIONS,
    SHARD_COPIES,
    SHARD_RESTORES,
    READ,
    READERS,
    BLOCKS,
    SIZE,
    USED,
    FILES,
    FREE,
    MEMORY,
    CONNECTIONS,
    DOWNLOADS,
    BYPASSED,
    BYPASSES,
    CORRUPT,
    EVICTED,
)


class CacheMetrics(Collector):
    """The metrics of a node cache.

    Args:
        node: whose figures are read.
        connections: returns the number of open connections.
    """

    def __init__(self, node: Node, connections: Callable[[], int]) -> None:
        self._node = node
        self._connections = connections

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        node, disk, fetcher = self._node, self._node.disk, self._node.fetcher
        accounts = labelled(node.accounts.all())
        jobs = [(account.name, account) for account in accounts]
        yield family(READ, (((name, each), getattr(job, each)) for name, job in jobs for each in SOURCES))
        yield family(READERS, (((name,), job.readers) for name, job in jobs))
        yield family(BLOCKS, iter(((("hit",), fetcher.hits), (("miss",), fetcher.misses))))
        yield family(USED, (((area,), disk.used[area]) for area in AREAS))
        yield family(FILES, (((area,), len(disk.entries[area])) for area in AREAS))
        for metric, value in (
            (SIZE, disk.limits.size_bytes),
            (FREE, disk.free_bytes),
            (MEMORY, node.memory.used_bytes),
            (CONNECTIONS, self._connections()),
            (DOWNLOADS, fetcher.running),
            (BYPASSED, not disk.health.usable),
            (BYPASSES, disk.health.bypasses),
            (CORRUPT, disk.corrupt),
            (EVICTED, disk.evicted_bytes),
        ):
            yield family(metric, iter([((), float(value))]))
        yield from self._of_peers()

    def _of_peers(self) -> Iterable[Metric]:
        peering = self._node.peering
        if peering is None:
            return
        for metric, outcomes in (
            (PEER_REQUESTS, peering.blocks.outcomes),
            (SHARD_COPIES, peering.copies.outcomes),
            (SHARD_RESTORES, peering.restorer.outcomes),
        ):
            yield family(metric, (((outcome,), count) for outcome, count in sorted(outcomes.items())))
        yield family(PEERS_SKIPPED, iter([((), float(len(peering.standing.skipped())))]))
        yield family(PEER_CONNECTIONS, iter([((), float(peering.server.connections))]))


def labelled(accounts: dict[str, Account]) -> list[Account]:
    """Return the accounts that are exported, one for each name."""
    newest = [account for job, account in accounts.items() if job != OTHER][-MAX_LABELS:]
    by_name = {account.name: account for account in newest}
    return [accounts[OTHER], *by_name.values()]
