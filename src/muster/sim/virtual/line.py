"""Simulated connections between supervisors and the controller's replicas, with delays, breaks and lost messages.

A connection leads to one replica, as through a Service. A replica handles a request in its own process. A halted
replica answers late; a killed one resets its connections.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from contextvars import Context
from typing import Any, Protocol

import msgspec

from muster.sim.virtual.loop import VirtualLoop
from muster.sim.virtual.process import Process

Reply = tuple[int, bytes]
Serve = Callable[[str, Mapping[str, str], bytes], Awaitable[Reply]]
"""Answers a request by path, headers and body."""
MUTE_S = 9.0
"""The server's kernel closes a connection after this time without an answer of the other machine (tcp(7),
keepalive).
"""


class Roads(Protocol):
    """The condition of connections between nodes and the controller."""

    def way_s(self, node: str) -> float:
        """Return the delay of the next message in one direction."""

    def breaks_after_s(self, node: str) -> float | None:
        """Returns when the connection breaks during a request that begins now; None if it does not."""

    def dark_until(self, node: str) -> float | None:
        """Return until when no message or reset passes; None if all messages pass."""


class Exchange:
    """One request, from its sending to the arrival of its answer."""

    def __init__(self, server: Process, node: str, answered: asyncio.Future[Reply]) -> None:
        self.server, self.node, self.answered = server, node, answered
        self.task: asyncio.Task[Reply] | None = None
        self.given_up = False
        self.unsaid_s = 0.0
        """Time until the server learns that the sender's machine is gone."""

    def fail(self, error: Exception) -> None:
        """Fail the request: its sender gets no answer."""
        if not self.answered.done():
            self.answered.set_exception(error)
            self.answered.exception()  # mark it as retrieved: the sender may be gone

    def give_up(self) -> None:
        """Notify the server that the sender no longer waits for the answer."""
        self.given_up = True
        if self.task is not None:
            self.task.cancel()


class Lines:
    """The listening replicas, and all messages between them and supervisors.

    Args:
        loop: the event loop with the virtual time.
        roads: the condition of connections.
        rng: chooses the replica of a new connection.
    """

    def __init__(self, loop: VirtualLoop, roads: Roads, rng: random.Random) -> None:
        self.loop, self.roads, self._rng = loop, roads, rng
        self._listening: dict[Process, Serve] = {}
        self._open: dict[Exchange, None] = {}
        self._outside = Context()

    def listen(self, server: Process, serve: Serve) -> None:
        """Accept connections for this process."""
        self._listening[server] = serve

    def ended(self, server: Process) -> None:
        """Reset every connection of a process that is gone."""
        self._listening.pop(server, None)
        for one in [one for one in self._open if one.server is server]:
            self.later(one.node, one.fail, ConnectionResetError("simulated: the controller is gone"))

    def dark(self, node: str, until: float) -> None:
        """Block all messages between a node and controllers until a time."""
        self.loop.call_at(self.loop.now + MUTE_S, self._mute, node, until, context=self._outside)

    def _mute(self, node: str, until: float) -> None:
        """Close a connection at the server after too long a silence.

        The node learns of it when it can be reached again.
        """
        if self.loop.now < until:
            for one in [one for one in self._open if one.node == node]:
                one.give_up()
                self.later(node, one.fail, ConnectionResetError("simulated: given up"))

    def unsaid_s(self) -> float:
        """Draw the time until servers learn that a machine is gone."""
        return self._rng.choice((0.0, MUTE_S))

    def pick(self) -> Process | None:
        """The replica to which a new connection leads; None if no replica listens."""
        servers = list(self._listening)
        return self._rng.choice(servers) if servers else None

    def send(self, server: Process, node: str, path: str, headers: Mapping[str, str], body: bytes) -> Exchange:
        """Send a request over a connection to a replica."""
        exchange = Exchange(server, node, self.loop.create_future())
        self._open[exchange] = None
        exchange.answered.add_done_callback(lambda _: self._open.pop(exchange, None), context=self._outside)
        if server not in self._listening:
            self.later(node, exchange.fail, ConnectionResetError("simulated: the controller is gone"))
            return exchange
        self.later(node, self._arrive, exchange, path, headers, body)
        breaks_s = self.roads.breaks_after_s(node)
        if breaks_s is not None:
            self.loop.call_later(breaks_s, self._break, exchange, context=self._outside)
        return exchange

    def later(self, node: str, act: Callable[..., object], *args: Any) -> None:
        """Call a function at the other end, after the delay of a message."""
        dark_until = self.roads.dark_until(node)
        start = self.loop.now if dark_until is None else dark_until
        self.loop.call_at(start + self.roads.way_s(node), act, *args, context=self._outside)

    def _break(self, exchange: Exchange) -> None:
        if not exchange.answered.done():
            exchange.give_up()
            exchange.fail(ConnectionResetError("simulated: connection broken"))

    def _arrive(self, exchange: Exchange, path: str, headers: Mapping[str, str], body: bytes) -> None:
        serve = self._listening.get(exchange.server)
        if serve is None or exchange.given_up:
            self.later(exchange.node, exchange.fail, ConnectionResetError("simulated: connection refused"))
            return

        async def answer() -> Reply:
            return await serve(path, headers, body)

        exchange.task = exchange.server.spawn(answer())
        exchange.task.add_done_callback(lambda task: self._answered(exchange, task), context=self._outside)

    def _answered(self, exchange: Exchange, task: asyncio.Task[Reply]) -> None:
        if task.cancelled():
            self.later(exchange.node, exchange.fail, ConnectionResetError("simulated: the controller closed"))
        elif (error := task.exception()) is not None:
            self.loop.fail(error)
        else:
            self.later(exchange.node, _settle, exchange.answered, task.result())


class Line:
    """A `muster.sim.poller.Link`: one request at a time from a node to the controller."""

    def __init__(self, lines: Lines, node: str) -> None:
        self._lines, self._node = lines, node
        self._server: Process | None = None
        self._exchange: Exchange | None = None

    @property
    def open(self) -> bool:
        """Return whether there is a connection."""
        return self._server is not None

    async def post(self, path: str, token: str, body: dict[str, Any], timeout_s: float) -> tuple[int, dict[str, Any]]:
        """Send one request, and return status and answer. Raises OSError or TimeoutError."""
        lines = self._lines
        async with asyncio.timeout(timeout_s):
            if self._server is None:
                shaken: asyncio.Future[None] = lines.loop.create_future()
                lines.later(self._node, _shake, shaken)
                await shaken
                self._server = lines.pick()
                if self._server is None:
                    raise ConnectionRefusedError("simulated: connection refused")
            headers = {"Authorization": f"Bearer {token}"}
            self._exchange = lines.send(self._server, self._node, path, headers, msgspec.json.encode(body))
            exchange = self._exchange
            try:
                status, answer = await exchange.answered
            except BaseException:
                lines.loop.call_later(exchange.unsaid_s, lines.later, self._node, exchange.give_up)
                raise
            finally:
                self._exchange = None
        return status, msgspec.json.decode(answer)

    def cut(self) -> None:
        """Close at once; open requests fail."""
        self._server = None
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.fail(ConnectionAbortedError("simulated: cut"))

    def reset(self) -> None:
        """Close as after the loss of the machine: the server gets a reset, or its kernel detects the loss later."""
        if self._exchange is not None:
            self._exchange.unsaid_s = self._lines.unsaid_s()
        self.cut()


def _settle(answered: asyncio.Future[Reply], reply: Reply) -> None:
    if not answered.done():
        answered.set_result(reply)


def _shake(shaken: asyncio.Future[None]) -> None:
    if not shaken.done():
        shaken.set_result(None)
