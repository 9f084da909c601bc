"""The parts of a node cache, which all its sessions share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from muster.data.cache.accounts import Accounts
from muster.data.cache.blocks import StoreIdentity
from muster.data.cache.disk import BLOCKS, SHARDS, Disk
from muster.data.cache.downloads import Busy, Downloads
from muster.data.cache.egress import Egress
from muster.data.cache.fetch import Fetcher
from muster.data.cache.identity import Member, Members
from muster.data.cache.marks import Marks
from muster.data.cache.memory import MemoryBudget
from muster.data.cache.rates import Rates
from muster.data.cache.shares import Shares
from muster.data.cache.stores import SharedStores
from muster.data.cache.trust import Trust, Who
from muster.kube.addresses import is_address
from muster.sdk.data.errors import Unavailable
from muster.sdk.data.wire import Message

if TYPE_CHECKING:
    from muster.data.peers.peering import Peering

T = TypeVar("T")
_THREADS: Final = 64
"""More than calls: a call whose store hangs is given up, and its thread is left behind."""
_CALLS: Final = 32
_CALLS_OF_JOB: Final = 16
_READERS_OF_JOB: Final = 512


class Reader(Protocol):
    """A session, as the node sees it."""

    @property
    def who(self) -> Who:
        """The job and its credentials' fingerprint."""


class Node:
    """A node cache.

    Args:
        name: of the node.
        address: IP:PORT at which peers reach this cache; "" without peers.
        disk: started.
        memory_bytes: for blocks while the disk is not used.
        schemes: of the stores that are served.
        marks: of jobs; None: none. With them the process is in the node's network, where stores may not be on loopback.
    """

    def __init__(
        self,
        name: str,
        address: str,
        disk: Disk,
        memory_bytes: int,
        schemes: frozenset[str],
        marks: Marks | None = None,
    ) -> None:
        self.name = name
        self.address = address
        self.disk = disk
        self.schemes = schemes
        self.accounts = Accounts()
        self.rates = Rates()
        self.marks = Marks(False) if marks is None else marks
        self.egress = Egress(self.rates, self.marks, loopback=not self.marks.enabled)
        self.trust = Trust()
        self.memory = MemoryBudget(memory_bytes)
        self.downloads = Downloads(self.accounts, self.rates)
        self.fetcher = Fetcher(disk, self.downloads, self.memory)
        self.members: Members | None = None
        self.peering: Peering | None = None
        self._readers: dict[str, set[Reader]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "store")
        self.stores = SharedStores(lambda store: self._threads.submit(store.close))
        self._shares = Shares(_CALLS, _CALLS_OF_JOB)

    def close(self) -> None:
        """Start no more work."""
        self.downloads.close()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.disk.close()

    def enter(self, reader: Reader, name: str) -> None:
        """Record a reader. Raises Busy if the job has too many."""
        if len(self.readers(reader.who.job)) >= _READERS_OF_JOB:
            raise Busy(f"the job has {_READERS_OF_JOB} connections to this node cache already")
        self.accounts.enter(reader.who.job, name)
        self.marks.enter(reader.who.job)
        self._readers.setdefault(reader.who.job, set()).add(reader)

    def leave(self, reader: Reader) -> None:
        """Record that a reader ended."""
        self.accounts.leave(reader.who.job)
        self.marks.leave(reader.who.job)
        readers = self._readers.get(reader.who.job, set())
        readers.discard(reader)
        if not readers:
            self._readers.pop(reader.who.job, None)

    def readers(self, job: str) -> set[Reader]:
        """Readers of a job."""
        return self._readers.get(job, set())

    def identify(self, ticket: object) -> Member | None:
        """Return the job of a ticket file's content; None without a ticket, or if it is refused."""
        if ticket is None or self.members is None:
            return None
        return self.members.join(ticket)

    def proxy_url(self, job: str, store: StoreIdentity) -> str:
        """URL of the proxy that carries the job's requests to this store; "" for none.

        A name that a reader chose is resolved by the proxy, because it may change to an address that is refused.
        """
        named = store.endpoint and not is_address(urlsplit(store.endpoint).hostname or "")
        return self.egress.url(job) if store.scheme != "file" and (named or self.marks.enabled) else ""

    async def in_thread(self, job: str, work: Callable[[], T], limit_s: float) -> T:
        """Run a call of a job's store. Raises Unavailable after `limit_s`, and what the call raises."""
        async with self._shares.take(job):
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
                    "name": account.name,
                    "mark": self.marks.known(each),
                    "rate_bytes_per_s": self.rates.get(each),
                    "readers": account.readers,
                    "bytes": {"bucket": account.bucket, "peer": account.peer, "disk": account.disk},
                }
                for each, account in self.accounts.all().items()
                if job is None or each == job
            ],
        }
