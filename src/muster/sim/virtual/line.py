"""Simulated connections between supervisors and the controller's replicas, with delays, breaks and lost messages.

Each connection leads to one replica, as with a Kubernetes Service. The replica handles a request in its own
simulated process. If the replica is halted, its answer is late. If it is killed, its connections are reset.
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
"""The request handler of a replica. Its arguments are path, headers and body."""
MUTE_S = 9.0
"""TCP keepalive closes a connection if the other machine has not answered for this time (tcp(7))."""


class Roads(Protocol):
    """The state of the network between nodes and the controller, as a run's faults determine it."""

    def way_s(self, node: str) -> float:
        """Return the delay of the next message between the node and the controller, in either direction."""

    def breaks_after_s(self, node: str) -> float | None:
        """Return the time after which the connection of a new request breaks; None if it does not break."""

    def dark_until(self, node: str) -> float | None:
        """Return the end of the present network outage of the node. None if there is no outage."""


class Exchange:
    """One request from a node to a replica, and its answer.

    Attributes:
        server: the replica.
        node: the node of the supervisor that sent the request.
        answered: the future with the answer, or with the error that the sender gets.
        task: the task that handles the request in the replica; None before the request arrives.
        given_up: whether the server knows that the sender no longer waits.
        unsaid_s: the time from the loss of the connection until the server learns of the loss.
    """

    def __init__(self, server: Process, node: str, answered: asyncio.Future[Reply]) -> None:
        self.server, self.node, self.answered = server, node, answered
        self.task: asyncio.Task[Reply] | None = None
        self.given_up = False
        self.unsaid_s = 0.0

    def fail(self, error: Exception) -> None:
        """Fail the request: its sender gets this error instead of an answer."""
        if not self.answered.done():
            self.answered.set_exception(error)
            self.answered.exception()  # if the sender is gone, asyncio must not warn about an unused error

    def give_up(self) -> None:
        """Record that the server knows of the lost connection, and cancel the handling of the request."""
        self.given_up = True
        if self.task is not None:
            self.task.cancel()


class Lines:
    """The network between supervisors and the replicas of the controller.

    Args:
        loop: the event loop with the virtual time.
        roads: the state of the network.
        rng: source of random numbers, for example to choose the replica of a new connection.
    """

    def __init__(self, loop: VirtualLoop, roads: Roads, rng: random.Random) -> None:
        self.loop, self.roads, self._rng = loop, roads, rng
        self._listening: dict[Process, Serve] = {}
        self._open: dict[Exchange, None] = {}
        self._outside = Context()

    def listen(self, server: Process, serve: Serve) -> None:
        """Start to accept connections for a replica."""
        self._listening[server] = serve

    def ended(self, server: Process) -> None:
        """Reset every connection of a replica that was killed or has ended."""
        self._listening.pop(server, None)
        for one in [one for one in self._open if one.server is server]:
            self.later(one.node, one.fail, ConnectionResetError("simulated: the controller is gone"))

    def dark(self, node: str, until: float) -> None:
        """Begin a network outage of a node. Keepalive closes the node's connections if the outage lasts long enough."""
        self.loop.call_at(self.loop.now + MUTE_S, self._mute, node, until, context=self._outside)

    def _mute(self, node: str, until: float) -> None:
        """Close the connections of a node on the server's side, if the outage still lasts.

        The node learns of the closed connections after the outage.
        """
        if self.loop.now < until:
            for one in [one for one in self._open if one.node == node]:
                one.give_up()
                self.later(node, one.fail, ConnectionResetError("simulated: given up"))

    def unsaid_s(self) -> float:
        """Return a random time until the server learns that a machine is gone: at once by a reset, or by keepalive."""
        return self._rng.choice((0.0, MUTE_S))

    def pick(self) -> Process | None:
        """Choose the replica for a new connection. Returns None if no replica listens."""
        servers = list(self._listening)
        return self._rng.choice(servers) if servers else None

    def send(self, server: Process, node: str, path: str, headers: Mapping[str, str], body: bytes) -> Exchange:
        """Send a request over a connection to a replica. The returned exchange has the future of the answer."""
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
        """Call a function after the delay of one message, or after the node's network outage plus this delay."""
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
    """A simulated `muster.sim.poller.Link`: a connection of a supervisor that carries one request at a time."""

    def __init__(self, lines: Lines, node: str) -> None:
        self._lines, self._node = lines, node
        self._server: Process | None = None
        self._exchange: Exchange | None = None

    @property
    def open(self) -> bool:
        """Return whether there is a connection."""
        return self._server is not None

    async def post(self, path: str, token: str, body: dict[str, Any], timeout_s: float) -> tuple[int, dict[str, Any]]:
        """Send one request; connect first if there is no connection. Returns status and answer.

        Raises OSError or TimeoutError.
        """
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
        """Close the connection at once. An open request fails."""
        self._server = None
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.fail(ConnectionAbortedError("simulated: cut"))

    def reset(self) -> None:
        """Close the connection as if the machine failed. The server gets a reset at once, or detects the loss later."""
        if self._exchange is not None:
            self._exchange.unsaid_s = self._lines.unsaid_s()
        self.cut()


def _settle(answered: asyncio.Future[Reply], reply: Reply) -> None:
    if not answered.done():
        answered.set_result(reply)


def _shake(shaken: asyncio.Future[None]) -> None:
    if not shaken.done():
        shaken.set_result(None)
