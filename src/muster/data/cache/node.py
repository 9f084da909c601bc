"""The parts of a node cache, which all its sessions share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from muster.data.cache.accounts import Accounts
from muster.data.cache.disk import BLOCKS, SHARDS, Disk
from muster.data.cache.downloads import Downloads
from muster.data.cache.fetch import Fetcher
from muster.data.cache.memory import MemoryBudget
from muster.data.cache.rates import Rates
from muster.data.cache.trust import Trust
from muster.sdk.data.errors import Unavailable
from muster.sdk.data.wire import Message

T = TypeVar("T")
_THREADS: Final = 16


class Node:
    """A node cache.

    Args:
        name: of the node.
        address: IP:PORT at which peers reach this cache; "" without peers.
        disk: started.
        memory_bytes: for blocks while the disk is not used.
        schemes: of the stores that are served.
    """

    def __init__(self, name: str, address: str, disk: Disk, memory_bytes: int, schemes: frozenset[str]) -> None:
        self.name = name
        self.address = address
        self.disk = disk
        self.schemes = schemes
        self.accounts = Accounts()
        self.rates = Rates()
        self.trust = Trust()
        self.memory = MemoryBudget(memory_bytes)
        self.downloads = Downloads(self.accounts, self.rates)
        self.fetcher = Fetcher(disk, self.downloads, self.memory)
        self._threads = ThreadPoolExecutor(_THREADS, "store")

    def close(self) -> None:
        """Start no more work."""
        self.downloads.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.disk.close()

    async def in_thread(self, work: Callable[[], T], limit_s: float) -> T:
        """Run a call of a store. Raises Unavailable after `limit_s`, and what the call raises."""
        future = asyncio.wrap_future(self._threads.submit(work))
        done, _ = await asyncio.wait({future}, timeout=limit_s)
        if not done:
            future.add_done_callback(lambda late: late.cancelled() or late.exception())
            raise Unavailable(f"the store did not answer within {limit_s:.0f} s")
        return future.result()

    def status(self, job: str | None) -> Message:
        """Return the fields of `wire.STATUS`, with the figures of one job, or of all if it is None."""
        disk = self.disk
        return {
            "node": self.name,
            "address": self.address,
            "state": "ok" if disk.health.usable else "bypass",
            "reason": disk.health.reason,
            "size_bytes": disk.limits.size_bytes,
            "used_bytes": disk.used_bytes,
            "protected_bytes": disk.used[SHARDS],
            "blocks": len(disk.entries[BLOCKS]),
            "free_bytes": disk.free_bytes,
            "floor_bytes": disk.floor_bytes,
            "hits": self.fetcher.hits,
            "misses": self.fetcher.misses,
            "jobs": [
                {
                    "job": each,
                    "rate_bytes_per_s": self.rates.get(each),
                    "readers": account.readers,
                    "bytes": {"bucket": account.bucket, "peer": account.peer, "disk": account.disk},
                }
                for each, account in self.accounts.all().items()
                if job is None or each == job
            ],
        }
