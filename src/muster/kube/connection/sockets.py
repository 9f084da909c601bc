"""The sockets of one client: closing the client closes every connection, whatever the server does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import weakref
from typing import Any

_LOOKS, _LOOK_S = 1000, 0.001


class Sockets:
    """Makes the sockets of an aiohttp connector, and cuts those that are open once it is closed.

    A connector forgets each TLS connection that it closed in the middle of an answer, as every watch ends.
    Then asyncio waits up to 30 s for the server's close message. Many event loops end before that.
    """

    def __init__(self) -> None:
        self._made: weakref.WeakSet[socket.socket] = weakref.WeakSet()

    def make(self, address: tuple[Any, ...]) -> socket.socket:
        """Return a socket for an address of `getaddrinfo`."""
        family, kind, protocol = address[:3]
        made = socket.socket(family, kind, protocol)
        self._made.add(made)
        return made

    async def cut(self) -> None:
        """End every connection, without waiting for the other side."""
        for each in self._open():
            with contextlib.suppress(OSError):  # not connected any more
                each.shutdown(socket.SHUT_RDWR)
        for _ in range(_LOOKS):
            if not self._open():
                return
            await asyncio.sleep(_LOOK_S)  # their transports see the end, and close them

    def _open(self) -> list[socket.socket]:
        return [each for each in self._made if each.fileno() >= 0]
