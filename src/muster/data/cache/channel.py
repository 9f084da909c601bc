"""Frames and descriptors on a Unix socket, in the event loop."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Final

from muster.sdk.data.wire import MAX_FRAME_BYTES, Message, body_length, decode, encode, give_descriptors

_CREDENTIALS: Final = struct.Struct("3i")
"""`struct ucred`: process, user and group (unix(7), SO_PEERCRED)."""


class Channel:
    """A connection with a client.

    Args:
        connection: non-blocking; the channel closes it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._resumed = asyncio.Event()
        self._sending = asyncio.Lock()

    def peer_uid(self) -> int:
        """User ID of the process that connected, as the kernel saw it."""
        data = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(data)[1])

    async def receive(self) -> Message:
        """Return the next message. Raises EOFError, ProtocolError, OSError."""
        return decode(await self._exactly(body_length(await self._exactly(4))))

    async def paused(self) -> None:
        """Wait until `resume` is called: the client sends raw bytes, which another task receives."""
        await self._resumed.wait()
        self._resumed.clear()

    def resume(self) -> None:
        """Let the task that receives messages continue."""
        self._resumed.set()

    async def copy(self, count: int, write: Callable[[memoryview], Awaitable[None]], part_s: float) -> None:
        """Pass `count` raw bytes to `write`, each part within `part_s` seconds.

        Raises EOFError, TimeoutError, OSError, and what `write` raises.
        """
        buffer = memoryview(bytearray(min(count, MAX_FRAME_BYTES)))
        while count > 0:
            got = await asyncio.wait_for(
                self._loop.sock_recv_into(self._connection, buffer[: min(count, len(buffer))]), part_s
            )
            if not got:
                raise EOFError
            await write(buffer[:got])
            count -= got

    async def send(self, message: Message, descriptor: int = -1) -> None:
        """Send a message, and a descriptor beside it. Raises OSError, ProtocolError."""
        frame = encode(message)
        ancillary = give_descriptors([descriptor] if descriptor >= 0 else [])
        async with self._sending:
            while True:
                try:
                    sent = self._connection.sendmsg([frame], ancillary)
                    break
                except BlockingIOError:
                    await self._writable()
            if sent < len(frame):
                await self._loop.sock_sendall(self._connection, frame[sent:])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    async def _exactly(self, count: int) -> bytes:
        parts = []
        while count > 0:
            data = await self._loop.sock_recv(self._connection, count)
            if not data:
                raise EOFError
            parts.append(data)
            count -= len(data)
        return b"".join(parts)

    async def _writable(self) -> None:
        """Wait until the client has read some of what was sent. A duplicate is watched: the loop may read meanwhile."""
        watched = os.dup(self._connection.fileno())
        ready: asyncio.Future[None] = self._loop.create_future()
        try:
            self._loop.add_writer(watched, _wake, ready)
            await ready
        finally:
            self._loop.remove_writer(watched)
            os.close(watched)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
