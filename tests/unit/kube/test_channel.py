"""Peers that read slowly, and how long a channel waits for them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from muster.kube.http1 import channel as channels
from muster.kube.http1.channel import Channel, Outbox
from tests.support.waiting import until

LARGE = b"x" * (4 << 20)
"""More than the kernel takes."""


class User:
    """Uses a channel, and does nothing."""

    def ready(self) -> None:
        pass

    def received(self, data: bytes) -> None:
        pass

    def ended(self) -> None:
        pass

    def full(self) -> None:
        pass

    def drained(self) -> None:
        pass

    def lost(self, error: Exception | None) -> None:
        pass


@dataclass
class Pairs:
    """Channels and their peers."""

    outbox: Outbox
    peers: list[socket.socket] = field(default_factory=list)
    made: list[Channel] = field(default_factory=list)

    def connect(self) -> tuple[Channel, socket.socket]:
        """Make a channel and its peer."""
        near, far = socket.socketpair()
        far.setblocking(False)
        self.peers.append(far)
        self.made.append(Channel(self.outbox, near, User()))
        return self.made[-1], far

    def patient_end(self) -> tuple[Channel, socket.socket]:
        """Make a channel where the end of a response waits that its peer may read at any pace."""
        channel, peer = self.connect()
        channel.set_patient(True)
        channel.write(LARGE)
        channel.set_patient(False)
        assert channel.waiting_bytes
        assert channel not in self.outbox.stalled
        return channel, peer


@asynccontextmanager
async def pairs(stall_s: float = 60.0) -> AsyncIterator[Pairs]:
    loop = asyncio.get_running_loop()
    outbox = Outbox(loop, full_bytes=1 << 18, waiting_bytes_max=64 << 20, stall_s=stall_s)
    found = Pairs(outbox)
    try:
        yield found
    finally:
        for channel in found.made:
            channel.abort()
        for peer in found.peers:
            peer.close()
        outbox.close()


async def test_next_response_behind_the_end_of_a_patient_one_has_a_deadline() -> None:
    async with pairs(stall_s=0.1) as found:
        channel, _ = found.patient_end()
        channel.write(b"next")
        await until("it is dropped", lambda: channel.closed)
        assert found.outbox.dropped == {"stalled": 1}
        assert found.outbox.waiting_bytes == 0


async def test_further_writes_do_not_extend_the_deadline() -> None:
    async with pairs() as found:
        first, _ = found.patient_end()
        second, _ = found.connect()
        first.write(b"next")
        second.write(LARGE)
        first.write(b"more")
        assert found.outbox.stalled.oldest() is first


async def test_closed_channel_does_not_wait_without_end_for_a_patient_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_CLOSE_S", 0.1)
    async with pairs() as found:
        channel, _ = found.patient_end()
        channel.close()
        await until("it is dropped", lambda: channel.closed)
        assert found.outbox.dropped == {"stalled": 1}


async def test_peer_that_reads_extends_the_deadline_and_gets_everything() -> None:
    async with pairs() as found:
        loop = asyncio.get_running_loop()
        (channel, peer), (other, _) = found.patient_end(), found.patient_end()
        channel.close()
        other.close()
        assert found.outbox.closing.oldest() is channel
        got = b""
        while found.outbox.closing.oldest() is channel:
            got += await loop.sock_recv(peer, 1 << 16)
        assert channel.waiting_bytes
        assert found.outbox.closing.newest() is channel
        while data := await loop.sock_recv(peer, 1 << 16):
            got += data
        assert got == LARGE
        assert channel not in found.outbox.closing
