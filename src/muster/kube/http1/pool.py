"""Keeps connections to a server for reuse."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from muster.kube.http1.channel import Outbox, tune
from muster.kube.http1.connection import NotConnected, UpstreamConnection
from muster.kube.http1.deadlines import Deadlines


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """Limits of the connections to a server.

    Attributes:
        connect_s: to connect, with TLS.
        idle_s: an idle connection is closed after this time, which is shorter than the server's own.
        idle_max: idle connections.
        full_bytes: bytes that wait for the server before `room` waits.
        head_bytes_max: the head of a response.
        waiting_bytes_max: bytes that wait for the server on all connections. Above it, the one with the most is closed.
    """

    connect_s: float
    idle_s: float
    idle_max: int
    full_bytes: int
    head_bytes_max: int
    waiting_bytes_max: int


class Pool:
    """Connections to one server.

    Args:
        server: URL of the server.
        context: for TLS; None for plain HTTP.
        settings: limits of the connections.
        server_name: expected in the server's certificate, if it differs from the host in `server`.
    """

    def __init__(
        self, server: str, context: ssl.SSLContext | None, settings: PoolSettings, *, server_name: str = ""
    ) -> None:
        url = urlsplit(server)
        self.authority = url.netloc.rpartition("@")[2]
        self._host = url.hostname or ""
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._server_name = server_name or self._host
        self._context = context
        self._settings = settings
        loop = asyncio.get_running_loop()
        self._outbox = Outbox(
            loop,
            full_bytes=settings.full_bytes,
            waiting_bytes_max=settings.waiting_bytes_max,
            stall_s=None,  # as long as the program that reads at the other end
        )
        self._idle: Deadlines[UpstreamConnection] = Deadlines(loop, settings.idle_s, _close)
        self._open: set[UpstreamConnection] = set()
        self._outdated: set[UpstreamConnection] = set()

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._open)

    async def take(self, *, fresh: bool = False) -> UpstreamConnection:
        """Return a connection that carries no request, a new one if `fresh`. Raises NotConnected.

        A connection on which bytes arrived after its answer is closed. Bytes that arrive once the next request is on
        its way count as the answer to that: HTTP/1.1 does not name the request of an answer.
        """
        while not fresh and (connection := self._idle.newest()) is not None:
            self._idle.disarm(connection)
            connection.check()
            if not connection.channel.closed:
                return connection
        try:
            async with asyncio.timeout(self._settings.connect_s):
                return await self._connect()
        except TimeoutError:
            raise NotConnected(f"no connection within {self._settings.connect_s:g} s") from None

    def use(self, context: ssl.SSLContext | None) -> None:
        """Connect with another context from now on. A connection with the last one ends with its request, or now."""
        self._context = context
        self._outdated.update(self._open)
        while (connection := self._idle.oldest()) is not None:
            self._idle.disarm(connection)
            connection.channel.abort()

    def give_back(self, connection: UpstreamConnection) -> None:
        """Keep a connection for the next request, or close it if it cannot carry one."""
        usable = connection.reusable and not connection.channel.closed and connection not in self._outdated
        if usable and len(self._idle) < self._settings.idle_max:
            connection.rest()
            self._idle.arm(connection)
        else:
            connection.channel.abort()

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._open):
            connection.channel.abort()
        self._idle.close()
        self._outbox.close()

    async def _connect(self) -> UpstreamConnection:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise NotConnected(f"the host {self._host} is not known: {error}") from None
        failure: OSError | None = None
        for family, kind, protocol, _, address in found:
            connected = socket.socket(family, kind, protocol)
            try:
                connected.setblocking(False)
                tune(connected)
                await loop.sock_connect(connected, address)
            except OSError as error:
                connected.close()
                failure = error
                continue
            except BaseException:
                connected.close()
                raise
            connection = UpstreamConnection(
                connected, self._outbox, self._context, self._server_name, self._settings.head_bytes_max, self._forget
            )
            self._open.add(connection)
            try:
                await connection.handshake()
            except BaseException:
                connection.channel.abort()
                raise
            return connection
        raise NotConnected(str(failure))

    def _forget(self, connection: UpstreamConnection) -> None:
        self._open.discard(connection)
        self._outdated.discard(connection)
        self._idle.disarm(connection)


def _close(connection: UpstreamConnection) -> None:
    connection.channel.abort()
