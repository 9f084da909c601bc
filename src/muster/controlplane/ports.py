"""Chooses ports of this machine for programs that need theirs before they start."""

from __future__ import annotations

import errno
import os
import random
import socket
from collections import deque
from collections.abc import Container
from typing import Final

_LOOPBACK = "127.0.0.1"
_FIRST, _END = 20000, 32000
"""Below those that the kernel hands out by itself: one of these stays free until its program listens, and while it
restarts."""
_KEPT: Final = 64
"""Reservations that a process keeps: more than the ports that it chooses before their programs listen."""
_reservations: deque[int] = deque()


def port_in_use(port: int, address: str = _LOOPBACK) -> bool:
    """Returns whether something listens on a port of this address, or this user may not listen on it.

    Raises:
        OSError: this machine cannot listen on the address.
    """
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            return True
    return False


def free_port(taken: Container[int] = (), address: str = _LOOPBACK) -> int:
    """Return a port of this address that is not in use, and not in `taken`.

    No process of this machine gets the port again while the calling one runs, unless that chooses many more ports.

    Raises:
        OSError: all ports are in use, or this machine cannot listen on the address.
    """
    for port in random.SystemRandom().sample(range(_FIRST, _END), 200):
        if port not in taken and not port_in_use(port, address) and _reserve(port):
            return port
    raise OSError(errno.EADDRINUSE, f"no free port between {_FIRST} and {_END} on {address}")


def _reserve(port: int) -> bool:
    """Reserve a port among the callers of `free_port`; returns False if it is reserved.

    The name of an abstract Unix socket belongs to the same network namespace as the port, and ends with the process.
    """
    with socket.socket(socket.AF_UNIX) as mark:
        try:
            mark.bind(f"\0muster-port-{port}")
        except OSError:
            return False
        _reservations.append(mark.detach())
    if len(_reservations) > _KEPT:
        os.close(_reservations.popleft())
    return True
