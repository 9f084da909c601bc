"""Downloads a block from a peer or the bucket into a file, within a deadline, and charges it to a job."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, Final, NamedTuple, Protocol, cast

from muster.data.cache.accounts import Accounts
from muster.data.cache.blocks import Block
from muster.data.cache.rates import Rates
from muster.data.cache.shares import Shares
from muster.data.cache.sinks import Abandoned, Sink
from muster.sdk.data.errors import Unavailable
from muster.sdk.data.store import Store

MAX_DOWNLOADS: Final = 16
MAX_OF_JOB: Final = 12
_THREADS: Final = 48
"""More than downloads: a thread that hangs in a system call is left behind."""
_PEERS_S: Final = 36.0
"""All peers together; then the bucket is asked."""
_BASE_S: Final = 30.0
_SLOWEST_BYTES_PER_S: Final = 1 << 20


class Busy(Exception):
    """A limit of the daemon is reached. The reader uses the bucket."""


class NoPeer(Exception):
    """No peer provided the block."""


class Request(NamedTuple):
    """A download of a block. A block with a scope comes from peers, others from the bucket.

    Attributes:
        block: what is downloaded.
        store: with a reader's credentials.
        job: it pays.
        proxied: whether the store is behind our proxy, which applies the job's rate.
        gang: whose peers are asked; None without.
    """

    block: Block
    store: Store
    job: str
    proxied: bool = False
    gang: object | None = None


class Downloaded(NamedTuple):
    """The result of a download: its length, checksum, source, and the seconds that local writes took."""

    length: int
    sha256: str
    source: str
    write_s: float


class PeerSource(Protocol):
    """The caches of other nodes of a gang."""

    async def fetch(
        self, gang: Any, block: Block, descriptor: int, deadline_s: float, pause: Callable[[int], float]
    ) -> str | None:
        """Write a block to an empty file and return its SHA-256 in hex; None if no peer has it in time.

        `pause` charges bytes to the job's rate, and returns how many seconds to wait. After None the file is empty.
        Raises WriteFailed.
        """


class Downloads:
    """Downloads blocks. `peers` may be set later; None: all blocks come from the bucket."""

    def __init__(self, accounts: Accounts, rates: Rates) -> None:
        self.peers: PeerSource | None = None
        self._accounts = accounts
        self._rates = rates
        self._threads = ThreadPoolExecutor(_THREADS, "download")
        self._shares = Shares(MAX_DOWNLOADS, MAX_OF_JOB)
        self._peer_shares = Shares(MAX_DOWNLOADS, MAX_OF_JOB)

    def close(self) -> None:
        """Start no more downloads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def deadline_s(self, length: int, job: str) -> float:
        """Seconds that a download of so many bytes may take. A job with a low rate gets more."""
        rate = self._rates.get(job) or _SLOWEST_BYTES_PER_S
        return _BASE_S + length / min(_SLOWEST_BYTES_PER_S, rate)

    async def run(self, request: Request, descriptor: int, abandoned: threading.Event) -> Downloaded:
        """Write the block to an empty file. Raises StoreError, NoPeer, Busy if it was abandoned, and WriteFailed."""
        if request.block.scope:
            # Not in the places of the bucket: a node whose downloads all wait for peers could not serve its peers.
            async with self._peer_shares.take(request.job):
                return await self._from_peers(request, descriptor)
        async with self._shares.take(request.job):
            return await self._from_bucket(request, descriptor, abandoned)

    async def _from_peers(self, request: Request, descriptor: int) -> Downloaded:
        block, job = request.block, request.job
        if self.peers is None or request.gang is None:
            raise NoPeer
        sha256 = await self.peers.fetch(
            request.gang, block, descriptor, _PEERS_S, lambda count: self._rates.take(job, count)
        )
        if sha256 is None:
            raise NoPeer
        self._accounts.charge(job, "peer", block.length)
        return Downloaded(block.length, sha256, "peer", 0.0)

    async def _from_bucket(self, request: Request, descriptor: int, abandoned: threading.Event) -> Downloaded:
        block, store, job = request.block, request.store, request.job
        pace = (lambda count: 0.0) if request.proxied else (lambda count: self._rates.take(job, count))
        sink = Sink(descriptor, block.length, pace, abandoned)

        def read() -> None:
            with sink:
                store.read_into(block.key, cast(BinaryIO, sink), block.start, block.length, block.version)

        limit_s = self.deadline_s(block.length, job)
        future = asyncio.wrap_future(self._threads.submit(read))
        future.add_done_callback(_consume)
        done, _ = await asyncio.wait({future}, timeout=limit_s)
        if not done:
            abandoned.set()
            raise Unavailable(f"{block.key}: no answer within {limit_s:.0f} s", store.url, block.key)
        try:
            future.result()
        except Abandoned:
            raise Busy("no reader waits any more") from None
        if sink.count != block.length:
            raise Unavailable(f"{block.key}: got {sink.count} of {block.length} bytes", store.url, block.key)
        self._accounts.charge(job, "bucket", sink.count)
        return Downloaded(sink.count, sink.sha256(), "bucket", sink.write_s)


def _consume(future: asyncio.Future[None]) -> None:
    if not future.cancelled():
        future.exception()
