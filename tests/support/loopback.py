"""Subnets of this machine's loopback for nodes that are processes."""

from __future__ import annotations

import atexit
import random
import socket
from collections import deque

_PORT = 20000  # of UDP, at an address of the subnet that no pod gets
_KEPT_MAX = 128

_kept: deque[socket.socket] = deque()


@atexit.register
def _release() -> None:
    for held in _kept:
        held.close()


def loopback_subnet() -> str:
    """Return the first three numbers of a /24 that no other test of this machine is given: `127.64.0`.

    It is kept until this process ends, or has taken many more: two nodes with one address could not both listen.
    """
    chance = random.SystemRandom()
    for _ in range(1000):
        subnet = f"127.{chance.randint(64, 254)}.{chance.randint(0, 255)}"
        held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            held.bind((f"{subnet}.255", _PORT))
        except OSError:
            held.close()
            continue
        _kept.append(held)
        while len(_kept) > _KEPT_MAX:
            _kept.popleft().close()
        return subnet
    raise AssertionError("no free subnet of the loopback in 1000 tries")
