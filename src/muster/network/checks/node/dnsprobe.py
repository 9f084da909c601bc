"""Probes a DNS server as the C library of a pod does: two requests, A and AAAA, from one socket at once.

If one of the two packets is lost, the library waits 5 s before it asks again. The usual cause is a race in conntrack,
which counts insert_failed, but answers are lost without that counter too (kubernetes/kubernetes#56903). So the probe
counts lost answers instead.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from typing import Final

A, AAAA = 1, 28
_HEAD: Final = struct.Struct(">HHHHHH")
_RECURSION_DESIRED: Final = 0x0100
_INTERNET: Final = 1
_ANSWER_BYTES_MAX: Final = 4096


async def lost_answers(server: str, port: int, name: str, timeout_s: float) -> int:
    """Ask for both addresses of a name; return how many of the two answers did not arrive in time.

    An answer with an error counts as an answer.

    Raises:
        OSError: the server cannot be asked, such as without a route, or because its port is closed.
    """
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    loop = asyncio.get_running_loop()
    first = random.randrange(1 << 15) * 2
    waiting = {first, first + 1}
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as opened:
        opened.connect((server, port))
        opened.send(request(first, name, A))
        opened.send(request(first + 1, name, AAAA))
        try:
            async with asyncio.timeout(timeout_s):
                while waiting:
                    answer = await loop.sock_recv(opened, _ANSWER_BYTES_MAX)
                    if len(answer) >= _HEAD.size:
                        waiting.discard(_HEAD.unpack_from(answer)[0])
        except TimeoutError:
            return len(waiting)
    return 0


def request(number: int, name: str, type_: int) -> bytes:
    """Return a DNS request (RFC 1035, section 4.1). Raises ValueError if the name is not possible."""
    labels = [label.encode("ascii") for label in name.rstrip(".").split(".")]
    if not all(0 < len(label) < 64 for label in labels):
        raise ValueError(f"{name!r} is not a DNS name")
    question = b"".join(bytes((len(label),)) + label for label in labels) + b"\0"
    return _HEAD.pack(number, _RECURSION_DESIRED, 1, 0, 0, 0) + question + struct.pack(">HH", type_, _INTERNET)
