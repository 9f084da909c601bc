"""The server for peers: gives blocks and checkpoint shards to caches of gangs that have a reader on this node."""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Annotated, Final, Never, Protocol, TypeVar

import msgspec

from muster.data.peers.frames import (
    HANDSHAKE_BYTES_MAX,
    HANDSHAKE_S,
    VERSION,
    Code,
    Message,
    PeerError,
    Stream,
    decode,
    read_frame,
    serve_handshake,
    set_options,
    write_frame,
)
from muster.data.peers.gangs import Gang, Gangs
from muster.data.peers.holder import BLOCK_BYTES_MAX, STORE_CODES, Held, Holder, NotHeld, Wanted
from muster.data.peers.transfer import send_file

log = logging.getLogger(__name__)
T = TypeVar("T")

CONNECTIONS_MAX: Final = 4096
STRANGERS_MAX: Final = 1024
"""Most connections that have not authenticated yet."""
STRANGERS_OF_HOST_MAX: Final = 64
"""Of them, most from one address: a client that opens many does not keep the others out."""
TRANSFERS_MAX: Final = 32
"""Most transfers at once; others wait, and their clients get a sign of life."""
IDLE_S: Final = 60.0
PENDING_S: Final = 1.0
_FETCH_S: Final = 300.0
"""Longest time that a request may ask for."""
_THREADS: Final = 4


class Greeting(msgspec.Struct, frozen=True):
    """First message of a client."""

    version: int
    uid: Annotated[str, msgspec.Meta(max_length=64)]
    attempt: int
    nonce: Annotated[str, msgspec.Meta(min_length=32, max_length=32)]


class GetBlock(msgspec.Struct, frozen=True):
    """Request for a block."""

    store: str
    key: str
    version: str
    size: Annotated[int, msgspec.Meta(ge=1)]
    index: Annotated[int, msgspec.Meta(ge=0)]
    deadline_s: Annotated[float, msgspec.Meta(gt=0, le=_FETCH_S)]


class Shards(Protocol):
    """Checkpoint shards of this node, as the server sees them."""

    def catalog(self, uid: str) -> list[str]:
        """Names of the shards of a job."""

    async def open(self, uid: str, key: str, sha256: str) -> Held | None:
        """Open a shard of the job."""

    async def receive(self, gang: Gang, message: Message, stream: Stream) -> None:
        """Take a copy of a shard that the client announces. Raises PeerError."""


class Served(Protocol):
    """Receives the number of bytes that went to other nodes of a job."""

    def __call__(self, uid: str, count: int, /) -> None:
        """Record them."""


class PeerServer:
    """Serves peers.

    Args:
        gangs: who is served.
        holder: the blocks of this node.
        shards: the checkpoint shards of this node; None to keep none.
        address: IP:PORT, as the peers know it.
        served: called with each job's sent bytes.
        pause: charges sent bytes to a job's rate; returns seconds to wait.
        mark: called with each socket and the UID of its job, before it carries the job's bytes.
    """

    def __init__(
        self,
        gangs: Gangs,
        holder: Holder,
        shards: Shards | None,
        address: str,
        *,
        served: Served = lambda uid, count: None,
        pause: Callable[[str, int], float] = lambda uid, count: 0.0,
        mark: Callable[[socket.socket, str], None] = lambda sock, uid: None,
    ) -> None:
        self._gangs = gangs
        self._holder = holder
        self._shards = shards
        self._address = address
        self._served = served
        self._pause = pause
        self._mark = mark
        self.refused: Counter[str] = Counter()
        """Connections that were refused, by code."""
        self._strangers: Counter[str] = Counter()
        self._connections: set[asyncio.Task[None]] = set()
        self._transfers = asyncio.Semaphore(TRANSFERS_MAX)
        self._threads = ThreadPoolExecutor(_THREADS, "peers")

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self._connections)

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Serve while the context is open. Raises OSError if the address cannot be used."""
        host, _, port = self._address.rpartition(":")
        try:
            server = await self._listen(host.strip("[]"), int(port))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            # The address is the node's, and the pod has a network of its own: the node forwards a hostPort.
            server = await self._listen(None, int(port))
        try:
            yield
        finally:
            server.close()
            for task in list(self._connections):
                task.cancel()
            await server.wait_closed()
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _listen(self, host: str | None, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve, host, port, limit=1 << 20, backlog=1024, reuse_address=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host = str((writer.get_extra_info("peername") or ("",))[0])
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            set_options(writer)
            gang, stream = await self._welcome(reader, writer, host)
            await self._converse(gang, stream)
        except PeerError as error:
            log.debug("peer %s: %s", host, error)
        except (OSError, EOFError, TimeoutError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client is gone, too slow, or its gang has ended
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _welcome(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str
    ) -> tuple[Gang, Stream]:
        crowded = sum(self._strangers.values()) >= STRANGERS_MAX or self._strangers[host] >= STRANGERS_OF_HOST_MAX
        if crowded or len(self._connections) > CONNECTIONS_MAX:
            await self._refuse(writer, Code.BUSY)
        self._strangers[host] += 1
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                message = decode(await read_frame(reader, HANDSHAKE_BYTES_MAX))
                try:
                    greeting = msgspec.convert(message, Greeting)
                except msgspec.ValidationError as error:
                    await self._refuse(writer, Code.MALFORMED, str(error))
                if greeting.version != VERSION:
                    await self._refuse(writer, Code.VERSION)
                gang = self._gangs.find(greeting.uid, greeting.attempt)
                if gang is None:
                    await self._refuse(writer, self._why_unknown(greeting.uid, greeting.attempt))
                return gang, await serve_handshake(reader, writer, self._address, message, gang.key)
        finally:
            self._strangers[host] -= 1
            if not self._strangers[host]:
                del self._strangers[host]

    def _why_unknown(self, uid: str, attempt: int) -> str:
        return Code.ENDED if self._gangs.ended(uid, attempt) else Code.NO_READER

    async def _refuse(self, writer: asyncio.StreamWriter, code: str, message: str = "") -> Never:
        self.refused[code] += 1
        await write_frame(writer, {"error": code})
        writer.close()
        raise PeerError(code, message)

    async def _converse(self, gang: Gang, stream: Stream) -> None:
        self._mark(stream.writer.get_extra_info("socket"), gang.uid)
        task = asyncio.current_task()
        assert task is not None
        gang.connections.add(task)
        try:
            if not self._gangs.serves(gang):  # it ended during the handshake, and so did not cut this connection
                code = self._why_unknown(gang.uid, gang.attempt)
                await stream.send({"error": code})
                raise PeerError(code)
            while True:
                async with asyncio.timeout(IDLE_S):
                    message = await stream.receive()
                try:
                    await self._answer(gang, stream, message)
                except PeerError as error:
                    await stream.send({"error": error.code})
                    if error.code not in _HARMLESS:
                        raise
        finally:
            gang.connections.discard(task)

    async def _answer(self, gang: Gang, stream: Stream, message: Message) -> None:
        op = message.get("op")
        if op == "block":
            await self._block(gang, stream, message)
        elif op == "catalog" and self._shards is not None:
            await stream.send({"shards": self._shards.catalog(gang.uid)})
        elif op == "shard" and self._shards is not None:
            held = await self._shards.open(gang.uid, str(message.get("key")), str(message.get("sha256")))
            if held is None:
                raise PeerError(Code.MISSING)
            await self._give(gang, stream, held)
        elif op == "copy" and self._shards is not None:
            await self._shards.receive(gang, message, stream)
        else:
            raise PeerError(Code.MISSING, f"no operation {op!r}")

    async def _block(self, gang: Gang, stream: Stream, message: Message) -> None:
        try:
            asked = msgspec.convert(message, GetBlock)
        except msgspec.ValidationError as error:
            raise PeerError(Code.MALFORMED, str(error)) from None
        wanted = Wanted(asked.store, asked.key, asked.version, asked.size, asked.index)
        held = await self._alive(stream, self._fetch(wanted, gang, asked.deadline_s), _close)
        if held.length > BLOCK_BYTES_MAX:
            held.close()
            raise PeerError(Code.MALFORMED, "the block is too long")
        await self._give(gang, stream, held)

    async def _fetch(self, wanted: Wanted, gang: Gang, deadline_s: float) -> Held:
        try:
            async with asyncio.timeout(deadline_s):
                return await self._holder.fetch(wanted, gang.uid, deadline_s)
        except NotHeld as error:
            raise PeerError(error.code) from None
        except TimeoutError:
            raise PeerError(Code.SLOW) from None

    async def _give(self, gang: Gang, stream: Stream, held: Held) -> None:
        try:
            await self._alive(stream, self._transfers.acquire(), lambda got: self._transfers.release())
            try:
                await stream.send({"length": held.length, "sha256": held.sha256})
                sent = functools.partial(self._sent, gang.uid)
                await send_file(stream.writer, held.descriptor, held.length, self._threads, sent)
            finally:
                self._transfers.release()
        finally:
            held.close()

    def _sent(self, uid: str, count: int) -> float:
        self._served(uid, count)
        return self._pause(uid, count)

    async def _alive(self, stream: Stream, work: Awaitable[T], dispose: Callable[[T], object]) -> T:
        """Await the work, and send a sign of life every second, so that a slow bucket does not look like a dead node.

        A result that cannot be returned any more goes to `dispose`.
        """
        task = asyncio.ensure_future(work)
        try:
            while True:
                done, _ = await asyncio.wait((task,), timeout=PENDING_S)
                if done:
                    return task.result()
                await stream.send({"pending": True})
        except (OSError, asyncio.CancelledError):
            task.add_done_callback(lambda late: _dispose(late, dispose))
            task.cancel()
            raise


def _dispose(late: asyncio.Future[T], dispose: Callable[[T], object]) -> None:
    if not late.cancelled() and late.exception() is None:
        dispose(late.result())


def _close(held: Held) -> None:
    held.close()


_HARMLESS: Final = frozenset({Code.MISSING, Code.NO_ROOM, Code.SLOW, Code.BUSY, *STORE_CODES})
"""Errors after which the connection can be used on: no raw bytes are outstanding."""
