"""Chooses ports of this machine for programs that need theirs before they start."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Container

_LOOPBACK = "127.0.0.1"
_FIRST, _END = 20000, 32000
"""Below those that the kernel hands out by itself: one of these stays free until its program listens, and while it
restarts."""


def port_in_use(port: int) -> bool:
    """Returns whether something listens on a port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_LOOPBACK, port))
        except OSError:
            return True
    return False


def free_port(taken: Container[int] = ()) -> int:
    """Return a port of 127.0.0.1 that is not in use, and not in `taken`.

    Raises:
        OSError: all ports are in use.
    """
    for port in random.SystemRandom().sample(range(_FIRST, _END), 200):
        if port not in taken and not port_in_use(port):
            return port
    raise OSError(errno.EADDRINUSE, f"no free port between {_FIRST} and {_END} on {_LOOPBACK}")
