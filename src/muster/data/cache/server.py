"""Serves readers on the Unix sockets: one connection is one reader of one job in one store."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import traceback
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from muster.data.cache import controlops, operations, requests, storeops
from muster.data.cache.channel import Channel, Incoming
from muster.data.cache.disk import DiskBypassed
from muster.data.cache.downloads import Busy
from muster.data.cache.requests import BadRequest, NotPermitted
from muster.data.cache.session import Reply, Session
from muster.data.peers import shardops
from muster.sdk.data.errors import (
    AlreadyExists,
    Forbidden,
    NotFound,
    ObjectChanged,
    StoreError,
    Unavailable,
    WrongStore,
)
from muster.sdk.data.wire import ErrorCode, Message, ProtocolError, short_address

log = logging.getLogger(__name__)

MAX_CONNECTIONS: Final = 2048
MAX_QUEUED: Final = 8
"""Requests of a connection that may wait for their turn."""
_HELLO_S: Final = 10.0
_SEND_S: Final = 30.0
_PENDING_S: Final = 1.0
"""The client learns this often that its request is still worked on."""

_OPERATIONS: Final[dict[str, Callable[[Session, Message], Awaitable[Reply | None]]]] = {
    "hello": operations.hello,
    "credentials": operations.credentials,
    "block": operations.block,
    "warm": operations.warm,
    "done": operations.done,
    "status": operations.status,
    "head": storeops.head,
    "list": storeops.list_objects,
    "delete": storeops.delete,
    "ls": controlops.ls,
    "evict": controlops.evict,
    "rate": controlops.rate,
    "join": shardops.join,
    "kept": shardops.kept,
    "confirm": shardops.confirm,
}
_CODES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (NotFound, ErrorCode.MISSING),
    (Forbidden, ErrorCode.FORBIDDEN),
    (AlreadyExists, ErrorCode.EXISTS),
    (ObjectChanged, ErrorCode.CHANGED),
    (WrongStore, ErrorCode.WRONG_STORE),
    (Unavailable, ErrorCode.UNAVAILABLE),
    (StoreError, ErrorCode.REFUSED),
    (Busy, ErrorCode.BUSY),
    (DiskBypassed, ErrorCode.BYPASS),
    (BadRequest, ErrorCode.BAD_REQUEST),
    (NotPermitted, ErrorCode.NOT_PERMITTED),
)


class Server:
    """Accepts connections.

    Args:
        make_session: called with the user ID of the client, and whether it is on the control socket.
    """

    def __init__(self, make_session: Callable[[int, bool], Session]) -> None:
        self._make_session = make_session
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def connections(self) -> int:
        """Open connections."""
        return len(self._connections)

    async def serve(self, path: Path, mode: int, control: bool) -> None:
        """Accept connections on a new socket at `path`, until cancelled. Raises OSError."""
        with listening(path, mode) as listener:
            loop = asyncio.get_running_loop()
            while True:
                try:
                    connection, _ = await loop.sock_accept(listener)
                except OSError as error:  # too many open files: let some close
                    log.warning("could not accept a connection: %s", error.strerror)
                    await asyncio.sleep(0.1)
                    continue
                if self.connections >= MAX_CONNECTIONS and not control:
                    connection.close()
                    continue
                connection.setblocking(False)
                task = asyncio.create_task(self._attend(Channel(connection), control))
                self._connections.add(task)
                task.add_done_callback(self._connections.discard)

    async def close(self) -> None:
        """End all connections."""
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _attend(self, channel: Channel, control: bool) -> None:
        session = self._make_session(channel.peer_uid(), control)
        queue: asyncio.Queue[Incoming] = asyncio.Queue(MAX_QUEUED)
        answering = asyncio.create_task(self._answer_all(channel, session, queue))
        try:
            # The end of the connection is noticed while a request runs: it then ends the request.
            reading = asyncio.create_task(_read_all(channel, queue))
            try:
                await asyncio.wait({reading, answering}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (reading, answering):
                    task.cancel()
                for result in await asyncio.gather(reading, answering, return_exceptions=True):
                    _report(result)
        finally:
            while not queue.empty():
                queue.get_nowait().close()
            channel.close()
            await session.close()

    async def _answer_all(self, channel: Channel, session: Session, queue: asyncio.Queue[Incoming]) -> None:
        async with asyncio.timeout(_HELLO_S):
            first = await queue.get()
        await _answer(channel, session, first)
        while True:
            await _answer(channel, session, await queue.get())


async def _answer(channel: Channel, session: Session, incoming: Incoming) -> None:
    work = asyncio.create_task(handle(session, incoming, channel))
    try:
        while not (await asyncio.wait({work}, timeout=_PENDING_S))[0]:
            await _send(channel, Reply({"pending": True}))
        reply = _reply(work)
    except BaseException:
        work.add_done_callback(_close_late)
        work.cancel()
        raise
    if reply is not None:
        await _send(channel, reply)


async def _send(channel: Channel, reply: Reply) -> None:
    try:
        async with asyncio.timeout(_SEND_S):
            await channel.send(reply.message, reply.descriptor)
    finally:
        if reply.descriptor >= 0:
            os.close(reply.descriptor)


def _reply(work: asyncio.Task[Reply | None]) -> Reply | None:
    try:
        return work.result()
    except (StoreError, Busy, DiskBypassed, BadRequest, NotPermitted) as error:
        code = next(code for kind, code in _CODES if isinstance(error, kind))
        return Reply({"error": code, "message": str(error)})


def _close_late(work: asyncio.Task[Reply | None]) -> None:
    reply = None if work.cancelled() or work.exception() is not None else work.result()
    if reply is not None and reply.descriptor >= 0:
        os.close(reply.descriptor)


async def handle(session: Session, incoming: Incoming, channel: Channel) -> Reply | None:
    """Answer a request; None: it has no answer. Raises StoreError, Busy, DiskBypassed, BadRequest, NotPermitted."""
    request = incoming.message
    try:
        op = requests.text(request, "op")
        if op == "put":
            return await storeops.put(session, incoming, channel)
        if op == "keep":
            return await shardops.keep(session, request, incoming.descriptors)
        handler = _OPERATIONS.get(op)
        if handler is None:
            raise BadRequest(f"there is no operation {op[:40]!r}")
        return await handler(session, request)
    finally:
        incoming.close()


async def _read_all(channel: Channel, queue: asyncio.Queue[Incoming]) -> None:
    while True:
        incoming = await channel.receive()
        await queue.put(incoming)
        if incoming.message.get("op") == "put":
            await incoming.received.wait()


def _report(result: object) -> None:
    """Log unexpected errors of a connection by their type alone: texts may hold what the client sent."""
    expected = (asyncio.CancelledError, EOFError, OSError, ProtocolError, TimeoutError)
    if isinstance(result, BaseException) and not isinstance(result, expected):
        where = traceback.extract_tb(result.__traceback__)[-1]
        log.error("a connection failed: %s at %s:%s", type(result).__name__, where.filename, where.lineno)


@contextlib.contextmanager
def listening(path: Path, mode: int) -> Iterator[socket.socket]:
    """Listen at `path`. The socket replaces the one of an earlier process, without a moment in which none exists."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    own = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        own.unlink(missing_ok=True)
        with short_address(str(own)) as address:
            listener.bind(address)
        os.chmod(own, mode)
        listener.listen(128)
        listener.setblocking(False)
        os.rename(own, path)
        yield listener
    finally:
        listener.close()
        own.unlink(missing_ok=True)
