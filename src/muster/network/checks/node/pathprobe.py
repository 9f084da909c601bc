"""Probes whether full-size packets arrive at another node: a path that loses them without ICMP is a black hole.

The probe is an HTTP request to the agent of the other node that is longer than one packet. It needs no capability and
no other open port than that agent's. If small packets arrive (the connection opens) and the long request is never
acknowledged, then full-size packets are lost on the way.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from typing import Final, NamedTuple

from muster.kube.addresses import is_address

IP_MTU, IPV6_MTU = 14, 24
_HEADER_BYTES: Final = 4000
_REQUEST_BYTES_MAX: Final = 32_000


class PathAnswer(NamedTuple):
    """The result of one probe.

    Attributes:
        connected: whether a connection opened. Otherwise nothing is known about the path's MTU.
        mtu: of the path, as the kernel knows it at the end, in bytes.
        delivered: whether the full-size packets were acknowledged.
    """

    connected: bool
    mtu: int = 0
    delivered: bool = False


async def probe(address: str, port: int, timeout_s: float) -> PathAnswer:
    """Send a request in full-size packets to an address and port.

    Args:
        address: IPv4 or IPv6 address. Other texts are not connected: names are not resolved.
        port: of an HTTP server. Its answer may be an error.
        timeout_s: for the connection, and again for the acknowledgement.
    """
    if not is_address(address):
        return PathAnswer(connected=False)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    loop = asyncio.get_running_loop()
    with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as opened:
        try:
            async with asyncio.timeout(timeout_s):
                await loop.sock_connect(opened, (address, port))
        except OSError:
            return PathAnswer(connected=False)
        try:
            async with asyncio.timeout(timeout_s):
                await loop.sock_sendall(opened, _request(address, 2 * _mtu(opened)))
                await loop.sock_recv(opened, 1)
        except TimeoutError:
            return PathAnswer(True, _mtu(opened), _unacknowledged(opened) == 0)
        except OSError:  # the server closed the connection: it has read enough
            return PathAnswer(True, _mtu(opened), True)
        return PathAnswer(True, _mtu(opened), True)


def _request(address: str, size: int) -> bytes:
    lines = [b"GET /healthz HTTP/1.1", b"Host: " + address.encode(), b"Connection: close"]
    headers = min(size, _REQUEST_BYTES_MAX) // _HEADER_BYTES + 1
    lines += [b"X-Padding-%d: " % number + b"x" * _HEADER_BYTES for number in range(headers)]
    return b"\r\n".join(lines) + b"\r\n\r\n"


def _mtu(opened: socket.socket) -> int:
    if opened.family == socket.AF_INET6:
        return opened.getsockopt(socket.IPPROTO_IPV6, IPV6_MTU)
    return opened.getsockopt(socket.IPPROTO_IP, IP_MTU)


def _unacknowledged(opened: socket.socket) -> int:
    """Return how many sent bytes the other side has not acknowledged (SIOCOUTQ)."""
    return int(struct.unpack("i", fcntl.ioctl(opened, termios.TIOCOUTQ, b"\0" * 4))[0])
