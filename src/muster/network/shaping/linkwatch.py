"""Announces new network links, so that a pod's link is limited before the pod sends its first packet."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from typing import Final

from muster.network.netlink.socket import ROUTE
from muster.network.shaping.links import LINK_GROUP

_BYTES: Final = 64 * 1024
_BUFFER_BYTES: Final = 1024 * 1024


def open_watch() -> socket.socket:
    """Return a socket that hears of links in the network namespace of the calling thread. Raises OSError."""
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, ROUTE)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        made.bind((0, LINK_GROUP))
    except OSError:
        made.close()
        raise
    return made


async def watch_links(watch: socket.socket, changed: Callable[[], Awaitable[None]]) -> None:
    """Call `changed` after each burst of news about links, until cancelled. Lost news count as news."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            await loop.sock_recv(watch, _BYTES)
            while True:
                watch.recv(_BYTES)
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
        await changed()
