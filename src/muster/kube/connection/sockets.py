"""The sockets of one client, so that closing the client closes every connection at once."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import weakref
from typing import Any

_LOOKS, _LOOK_S = 1000, 0.001


class Sockets:
    """Creates the sockets of an aiohttp connector, and shuts down the open ones when the connector is closed.

    A watch ends in the middle of an answer. For such TLS connections asyncio waits up to 30 s for the server's close
    message, and the connector does not track them. Many event loops end before that.
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
            await asyncio.sleep(_LOOK_S)  # the transports then close the sockets

    def _open(self) -> list[socket.socket]:
        return [each for each in self._made if each.fileno() >= 0]
