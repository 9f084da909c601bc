"""Downloads a block from a peer or the bucket into a file, within a deadline, and charges it to a job."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO, Final, NamedTuple, Protocol, cast

from muster.data.cache.accounts import Accounts
from muster.data.cache.blocks import Block
from muster.data.cache.rates import Rates
from muster.data.cache.sinks import Abandoned, Sink
from muster.sdk.data.errors import Unavailable
from muster.sdk.data.store import Store

MAX_DOWNLOADS: Final = 16
_THREADS: Final = 48
"""More than downloads: a thread that hangs in a system call is left behind."""
_PEER_S: Final = 5.0
_BASE_S: Final = 30.0
_SLOWEST_BYTES_PER_S: Final = 1 << 20


class Busy(Exception):
    """A limit of the daemon is reached. The reader uses the bucket."""


class Request(NamedTuple):
    """A download: the block, the store with a reader's credentials, and the job that pays."""

    block: Block
    store: Store
    job: str


class Downloaded(NamedTuple):
    """The result of a download: its length, checksum, source, and the seconds that local writes took."""

    length: int
    sha256: str
    source: str
    write_s: float


class PeerSource(Protocol):
    """Finds blocks in the caches of other nodes."""

    async def find(self, block: Block, job: str, sink: Sink) -> bool:
        """Write the block to the sink if a peer of the job's gang has it. Returns whether it wrote all bytes.

        The caller sets a deadline and cancels the call when it has passed.
        """


class Downloads:
    """Downloads blocks. `peers` may be set later; None: all blocks come from the bucket."""

    def __init__(self, accounts: Accounts, rates: Rates) -> None:
        self.peers: PeerSource | None = None
        self._accounts = accounts
        self._rates = rates
        self._threads = ThreadPoolExecutor(_THREADS, "download")
        self._slots = asyncio.Semaphore(MAX_DOWNLOADS)

    def close(self) -> None:
        """Start no more downloads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def deadline_s(self, length: int, job: str) -> float:
        """Seconds that a download of so many bytes may take. A job with a low rate gets more."""
        rate = self._rates.get(job) or _SLOWEST_BYTES_PER_S
        return _BASE_S + length / min(_SLOWEST_BYTES_PER_S, rate)

    async def run(self, request: Request, descriptor: int, abandoned: threading.Event) -> Downloaded:
        """Write the block to the descriptor. Raises StoreError, Busy if it was abandoned, and WriteFailed."""
        async with self._slots:
            return await self._from_peer(request, descriptor, abandoned) or await self._from_bucket(
                request, descriptor, abandoned
            )

    async def _from_peer(self, request: Request, descriptor: int, abandoned: threading.Event) -> Downloaded | None:
        return None

    async def _from_bucket(self, request: Request, descriptor: int, abandoned: threading.Event) -> Downloaded:
        block, store, job = request
        sink = Sink(descriptor, block.length, lambda count: self._rates.take(job, count), abandoned)

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
