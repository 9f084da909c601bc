"""Simulated connections between agents and the hub: bytes take time, and keep their order.

A lost packet is a delay, because TCP sends it again. A connection that breaks may stay open on one side for a while.
"""

from __future__ import annotations

import asyncio
import random
from contextvars import Context
from typing import Final

from muster.network.uplink.hub import Hub
from muster.network.uplink.link import Streams
from muster.sim.virtual.loop import VirtualLoop
from muster.sim.virtual.process import Process

_FASTEST_S: Final = 0.0005
_SLOWEST_S: Final = 0.02
_RETRANSMIT_S: Final = (0.2, 0.4, 0.8, 1.6, 3.2)
UNNOTICED_S: Final = 9.0
"""How long a side may take to notice that the other one is gone."""


class Weather:
    """The faults of the network.

    Args:
        rng: source of random numbers.
        lost: probability that a message is lost once, so that it is late.
    """

    def __init__(self, rng: random.Random, lost: float) -> None:
        self.rng, self.lost = rng, lost

    def way_s(self) -> float:
        """Return the delay of the next message."""
        delay_s = self.rng.uniform(_FASTEST_S, _SLOWEST_S)
        for again_s in _RETRANSMIT_S:
            if self.rng.random() >= self.lost:
                break
            delay_s += again_s
        return delay_s


class Side:
    """One side of a connection. It has the methods of `link.Writer` and of `hub.Sending`."""

    def __init__(self, loop: VirtualLoop, weather: Weather) -> None:
        self.reader = asyncio.StreamReader(loop=loop)
        self.peer: Side | None = None
        self.gone = False
        self._loop, self._weather = loop, weather
        self._free_s = 0.0
        self._outside = Context()

    def write(self, data: bytes) -> None:
        """Send bytes to the peer, unless the connection is broken: then they are lost without an error."""
        if self.gone or self.peer is None:
            return
        self._free_s = max(self._free_s, self._loop.now + self._weather.way_s())
        self._loop.call_at(self._free_s, self.peer.arrive, data, context=self._outside)

    def arrive(self, data: bytes) -> None:
        """Receive bytes from the peer."""
        if not self.gone:
            self.reader.feed_data(data)

    async def drain(self) -> None:
        """Wait for nothing: buffers are unlimited."""
        if self.gone:
            raise ConnectionResetError("simulated: the connection is gone")

    def waiting_bytes(self) -> int:
        """Return 0: the kernel takes all bytes."""
        return 0

    def close(self) -> None:
        """Close the connection. The peer notices after the delay of a message."""
        self.end(self._weather.way_s())

    def abort(self) -> None:
        """Close the connection at once."""
        self.close()

    async def finish(self) -> None:
        """Close after what was sent."""
        self.end(max(0.0, self._free_s - self._loop.now) + _FASTEST_S, now=False)

    def end(self, noticed_s: float, *, now: bool = True) -> None:
        """End the connection: this side does not read any more, and the peer notices after `noticed_s`."""
        if self.gone:
            return
        peer = self.peer
        if now:
            self.gone = True
            self.reader.feed_eof()
        if peer is not None:
            self._loop.call_later(max(noticed_s, _FASTEST_S), peer.broken, context=self._outside)

    def broken(self) -> None:
        """Notice that the connection is gone."""
        if not self.gone:
            self.gone = True
            self.reader.feed_eof()


class Wires:
    """The network between agents and the present leader's hub."""

    def __init__(self, loop: VirtualLoop, weather: Weather) -> None:
        self._loop, self._weather = loop, weather
        self._hub: Hub | None = None
        self._process: Process | None = None
        self._sides: dict[str, tuple[Side, Side]] = {}
        self.cut: set[str] = set()
        """Nodes that cannot reach the hub."""

    def listen(self, hub: Hub, process: Process) -> None:
        """Accept connections for a hub, in its process."""
        self._hub, self._process = hub, process

    def ended(self, *, silently: bool) -> None:
        """Break all connections: the leader is dead. Without a reset the agents notice late, by their own timers."""
        self._hub = self._process = None
        for agent, hub in self._sides.values():
            hub.gone = True
            if not silently:
                self._loop.call_later(self._weather.way_s(), agent.broken, context=Context())
        self._sides.clear()

    def break_one(self, node: str) -> None:
        """Break the connection of a node. Each side notices at a moment of its own."""
        sides = self._sides.pop(node, None)
        for side in sides or ():
            side.peer = None
            self._loop.call_later(self._weather.rng.uniform(0.0, UNNOTICED_S), side.broken, context=Context())

    async def dial(self, node: str) -> Streams:
        """Connect a node's agent. Raises OSError."""
        await asyncio.sleep(self._weather.way_s() * 3)
        if self._hub is None or self._process is None or node in self.cut:
            raise ConnectionRefusedError("simulated: connection refused")
        agent, hub = Side(self._loop, self._weather), Side(self._loop, self._weather)
        agent.peer, hub.peer = hub, agent
        self._sides[node] = agent, hub
        self._process.spawn(self._hub.serve(hub.reader, hub))
        return agent.reader, agent
