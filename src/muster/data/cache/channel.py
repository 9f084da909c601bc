"""Frames and descriptors on a Unix socket, in the event loop."""

from __future__ import annotations

import asyncio
import functools
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from muster.sdk.data.wire import (
    MAX_DESCRIPTORS,
    MAX_FRAME_BYTES,
    Message,
    ProtocolError,
    ancillary_bytes,
    body_length,
    close_all,
    decode,
    encode,
    give_descriptors,
    take_descriptors,
)

T = TypeVar("T")
_ANCILLARY_BYTES: Final = ancillary_bytes()
_CREDENTIALS: Final = struct.Struct("3i")
"""`struct ucred`: process, user and group (unix(7), SO_PEERCRED)."""


class Incoming:
    """A message, and the descriptors beside it.

    Attributes:
        message: the message.
        descriptors: of the client. The handler of the message calls `close`.
        received: set when the raw bytes that follow the message were received, or will not be.
    """

    def __init__(self, message: Message, descriptors: list[int]) -> None:
        self.message = message
        self.descriptors = descriptors
        self.received = asyncio.Event()

    def close(self) -> None:
        """Close the descriptors."""
        close_all(self.descriptors)
        self.received.set()


class Channel:
    """A connection with a client.

    Args:
        connection: non-blocking; the channel closes it.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()

    def peer_uid(self) -> int:
        """User ID of the process that connected, as the kernel saw it."""
        data = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return int(_CREDENTIALS.unpack(data)[1])

    async def receive(self) -> Incoming:
        """Return the next message. Raises EOFError, ProtocolError, OSError."""
        descriptors: list[int] = []
        try:
            length = body_length(await self._exactly(4, descriptors))
            return Incoming(decode(await self._exactly(length, descriptors)), descriptors)
        except BaseException:
            close_all(descriptors)
            raise

    async def copy(self, count: int, write: Callable[[memoryview], Awaitable[None]], part_s: float) -> None:
        """Pass `count` raw bytes to `write`, each part within `part_s` seconds.

        Raises EOFError, TimeoutError, OSError, and what `write` raises.
        """
        buffer = memoryview(bytearray(min(count, MAX_FRAME_BYTES)))
        while count > 0:
            async with asyncio.timeout(part_s):
                part = buffer[: min(count, len(buffer))]
                got = await self._when_readable(functools.partial(self._connection.recv_into, part))
            if not got:
                raise EOFError
            await write(buffer[:got])
            count -= got

    async def send(self, message: Message, descriptor: int = -1) -> None:
        """Send a message, and a descriptor beside it. Raises OSError, ProtocolError."""
        frame = memoryview(encode(message))
        ancillary = give_descriptors([descriptor] if descriptor >= 0 else [])
        async with self._sending:
            while frame:
                try:
                    sent = self._connection.sendmsg([frame], ancillary)
                except BlockingIOError:
                    await self._wait(self._loop.add_writer, self._loop.remove_writer)
                else:
                    frame, ancillary = frame[sent:], []

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    async def _exactly(self, count: int, descriptors: list[int]) -> bytes:
        parts = []
        while count > 0:
            data, ancillary, flags, _ = await self._when_readable(
                functools.partial(self._connection.recvmsg, count, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
            )
            descriptors += take_descriptors(ancillary)
            if len(descriptors) > MAX_DESCRIPTORS or flags & socket.MSG_CTRUNC:
                raise ProtocolError("a message has too many descriptors")
            if not data:
                raise EOFError
            parts.append(data)
            count -= len(data)
        return b"".join(parts)

    async def _when_readable(self, receive: Callable[[], T]) -> T:
        while True:
            try:
                return receive()
            except BlockingIOError:
                await self._wait(self._loop.add_reader, self._loop.remove_reader)

    async def _wait(self, add: Callable[..., object], remove: Callable[[int], object]) -> None:
        """Wait until the connection is ready. Receiving and sending may wait at the same time."""
        number = self._connection.fileno()
        ready: asyncio.Future[None] = self._loop.create_future()
        add(number, _wake, ready)
        try:
            await ready
        finally:
            remove(number)


def _wake(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
