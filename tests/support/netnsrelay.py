"""Passes connections between this machine's loopback and that of a network namespace, at the same address."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

from tests.support.networknamespaces import Namespace

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@contextlib.asynccontextmanager
async def relayed(namespace: Namespace, port: int) -> AsyncIterator[None]:
    """Accept connections to 127.0.0.1:`port` in the namespace, and pass them on to 127.0.0.1:`port` outside."""
    listener = namespace.call(socket.create_server, ("127.0.0.1", port))
    async with _passing(listener, lambda: asyncio.open_connection("127.0.0.1", port)):
        yield


@contextlib.asynccontextmanager
async def exposed(namespace: Namespace, port: int) -> AsyncIterator[None]:
    """Accept connections to 127.0.0.1:`port` outside, and pass them on to 127.0.0.1:`port` in the namespace."""

    async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        made = await asyncio.to_thread(namespace.call, socket.create_connection, ("127.0.0.1", port))
        made.setblocking(False)
        return await asyncio.open_connection(sock=made)

    async with _passing(socket.create_server(("127.0.0.1", port)), connect):
        yield


@contextlib.asynccontextmanager
async def _passing(listener: socket.socket, connect: Connect) -> AsyncIterator[None]:
    """Pass the connections of a listener on."""
    listener.setblocking(False)
    pipes: set[asyncio.Task[None]] = set()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await connect()
        except OSError:
            writer.close()
            return
        for task in (asyncio.create_task(_pipe(reader, back)), asyncio.create_task(_pipe(there, writer))):
            pipes.add(task)
            task.add_done_callback(pipes.discard)

    server = await asyncio.start_server(accepted, sock=listener)
    try:
        yield
    finally:
        server.close()
        for task in tuple(pipes):
            task.cancel()
        await asyncio.gather(*pipes, return_exceptions=True)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
    finally:
        writer.close()
