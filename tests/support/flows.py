"""Flows through network namespaces, and how much arrived. They end with the block, and count bytes, not time."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Final

from tests.support.networknamespaces import Namespace, connected

_STEP_S: Final = 0.05
_SNDBUFFORCE: Final = 32


class Flow:
    """A sender that never stops, and a receiver."""

    def __init__(self, sender: socket.socket, receiver: socket.socket, *, datagram_bytes: int = 0) -> None:
        self._read_bytes = 0
        self.sender = sender
        self._receiver = receiver
        self._stop = threading.Event()
        self._datagram = datagram_bytes
        self._datagrams = 0
        for each in (sender, receiver):
            each.settimeout(_STEP_S)
        self._threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        chunk = bytes(self._datagram or 64 * 1024)
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError, OSError):
                self.sender.send(chunk)
            if self._datagram:
                self._datagrams = (self._datagrams + 1) % 8
                if not self._datagrams:
                    time.sleep(0.002)

    def _receive(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(TimeoutError):
                self._read_bytes += len(self._receiver.recv(1 << 18))

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)

    @property
    def received(self) -> int:
        """Bytes that arrived, read or not: tcpi_bytes_received (linux/tcp.h). Of datagrams, those that were read."""
        if self._datagram:
            return self._read_bytes
        info = self._receiver.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
        return int.from_bytes(info[128:136], sys.byteorder)

    @property
    def retransmits(self) -> int:
        """tcpi_total_retrans of the sender (linux/tcp.h)."""
        info = self.sender.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
        return int.from_bytes(info[100:104], sys.byteorder)


@contextlib.contextmanager
def tcp_flow(server: Namespace, address: str, client: Namespace, *, download: bool, port: int = 0) -> Iterator[Flow]:
    """A TCP flow to the client (download) or from it. The client connects to the server's address."""
    with connected(server, address, client, port=port) as (near_server, near_client):
        sender, receiver = (near_server, near_client) if download else (near_client, near_server)
        flow = Flow(sender, receiver)
        try:
            yield flow
        finally:
            flow.stop()


@contextlib.contextmanager
def udp_flow(server: Namespace, address: str, client: Namespace, *, datagram_bytes: int = 1200) -> Iterator[Flow]:
    """A UDP flow from the client to the server's address, up to 38 Mbit/s with datagrams of 1,200 bytes."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with server.socket(family, socket.SOCK_DGRAM) as receiver, client.socket(family, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.SOL_SOCKET, _SNDBUFFORCE, 8 << 20)  # else its own packets in a queue slow it
        receiver.bind((address, 0))
        sender.connect((address, receiver.getsockname()[1]))
        flow = Flow(sender, receiver, datagram_bytes=datagram_bytes)
        try:
            yield flow
        finally:
            flow.stop()


def received_in(flows: list[Flow], duration_s: float) -> list[int]:
    """Return how many bytes each flow delivered in so many seconds."""
    before = [flow.received for flow in flows]
    began = time.monotonic()
    time.sleep(duration_s)
    elapsed_s = time.monotonic() - began
    return [round((flow.received - was) * duration_s / elapsed_s) for flow, was in zip(flows, before, strict=True)]
