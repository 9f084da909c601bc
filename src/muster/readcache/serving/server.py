"""The server: accepts connections, admits and answers requests, and forwards what the cache does not answer."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import random
import socket
import ssl
from collections.abc import Callable
from typing import Protocol

from muster.kube.http1.channel import Outbox, tune
from muster.kube.http1.deadlines import Deadlines
from muster.kube.http1.heads import CACHE_CONTROL
from muster.readcache.access.access import Admitted
from muster.readcache.hub.log import Expired
from muster.readcache.request import Answer, Forward, Refusal, Request, Target
from muster.readcache.serving.answering import write_answer
from muster.readcache.serving.connection import Connection
from muster.readcache.serving.counters import Counters
from muster.readcache.serving.exchange import Exchange, Trace
from muster.readcache.serving.refusals import refused
from muster.readcache.serving.settings import ServingSettings
from muster.readcache.serving.watching import Framer, PushedWatch, Watch

_log = logging.getLogger(__name__)

_BACKLOG = 4096
_ACCEPTS_MAX = 16  # per wake-up: handshakes take time
_ACCEPT_PAUSE_S = 0.2
_OUT_OF_FILES = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Gate(Protocol):
    """Admits requests."""

    async def admit(self, target: Target, request: Request) -> object:
        """Check a request. Returns Forward if only the API server can judge it. Raises Refusal."""
        ...


class Reader(Protocol):
    """Answers requests from the cache."""

    async def answer(self, target: Target, request: Request) -> Answer | Watch | Forward:
        """Answer a request, or say that the API server must. Raises Refusal."""
        ...


class Forwarder(Protocol):
    """Passes requests on to the API server."""

    async def forward(self, exchange: Exchange, reason: str) -> None:
        """Send the request to the API server, and its response to the client. Raises Refusal before the response."""
        ...

    def close(self) -> None:
        """Close all connections to the API server."""
        ...


class Tracer(Protocol):
    """Follows requests for the request log."""

    def began(self, request: Request) -> Trace | None:
        """Follow a request; None if it is not worth a line."""
        ...


class Server:
    """An HTTP/1.1 server in front of the API server.

    Args:
        route: returns what a request reads from the cache, None to forward it.
        context: for TLS; None for plain HTTP.
        tracer: follows each request for the request log; None if it is off.
    """

    def __init__(
        self,
        route: Callable[[Request], Target | None],
        gate: Gate,
        reader: Reader,
        forwarder: Forwarder,
        *,
        settings: ServingSettings | None = None,
        context: ssl.SSLContext | None = None,
        rng: random.Random | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self.settings = settings or ServingSettings()
        self.head_bytes_max = self.settings.head_bytes_max
        self.context = context
        self.counters = Counters()
        self._route = route
        self._gate = gate
        self._reader = reader
        self._forwarder = forwarder
        self._tracer = tracer
        self._rng = rng or random.Random()
        self._loop = loop = asyncio.get_running_loop()
        self._listeners: list[socket.socket] = []
        self._connections: dict[Connection, None] = {}
        self._watches: dict[PushedWatch, None] = {}
        self._framer = Framer()
        self._outbox = Outbox(
            loop,
            full_bytes=self.settings.full_bytes,
            waiting_bytes_max=self.settings.waiting_bytes_max,
            stall_s=self.settings.stall_s,
        )
        self._outbox.dropped = self.counters.dropped
        self._shaking: Deadlines[Connection] = Deadlines(loop, self.settings.handshake_s, self._too_slow)
        self._heads: Deadlines[Connection] = Deadlines(loop, self.settings.head_s, self._too_slow)
        self._idle: Deadlines[Connection] = Deadlines(loop, self.settings.idle_s, Connection.close)
        self._empty = asyncio.Event()
        self._empty.set()
        self._stopping = False

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    @property
    def watches(self) -> int:
        """The number of watches that are pushed."""
        return len(self._watches)

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait for clients."""
        return self._outbox.waiting_bytes

    def listen(self, host: str, port: int) -> tuple[str, int]:
        """Listen on an address; port 0 for any free one. Returns the address. Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
        listener.setblocking(False)
        tune(listener)
        self._listeners.append(listener)
        self._loop.add_reader(listener.fileno(), self._accept, listener)
        address = listener.getsockname()
        return str(address[0]), int(address[1])

    async def stop(self) -> None:
        """Stop: no new connections; running requests may end; watches end one after the other, at random times.

        A client that begins another request is sent away from now on. After the grace period the rest is cut off.
        """
        self._stopping = True
        self._close_listeners()
        for connection in list(self._connections):
            connection.close()
        spread_s = min(self.settings.watches_end_s, self.settings.grace_s)
        for watch in list(self._watches):
            watch.stop_later(self._rng.uniform(0, spread_s))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.grace_s):
                await self._empty.wait()
        for connection in list(self._connections):
            connection.abort()
        for deadlines in (self._shaking, self._heads, self._idle):
            deadlines.close()
        self._outbox.close()
        self._forwarder.close()

    # What connections call.

    def waits_for_head(self, connection: Connection) -> None:
        """A request is due."""
        self._shaking.disarm(connection)
        self._idle.disarm(connection)
        if connection not in self._heads:
            self._heads.arm(connection)

    def busy(self, connection: Connection) -> None:
        """A request is served."""
        self._shaking.disarm(connection)
        self._heads.disarm(connection)
        self._idle.disarm(connection)

    def idle(self, connection: Connection) -> None:
        """Another request may come."""
        self._heads.disarm(connection)
        if self._stopping:
            connection.close()
        else:
            self._idle.arm(connection)

    def gone(self, connection: Connection) -> None:
        """The connection is closed."""
        self._connections.pop(connection, None)
        if not self._connections:
            self._empty.set()

    def serve(self, exchange: Exchange) -> None:
        """Answer a request."""
        if self._tracer is not None:
            exchange.trace = self._tracer.began(exchange.request)
        exchange.task = self._loop.create_task(self._serve(exchange))

    def reject(self, exchange: Exchange, status: int, message: str) -> None:
        """Answer a request that is not valid."""
        self.counters.rejected += 1
        reason = "RequestHeaderFieldsTooLarge" if status == 431 else "BadRequest"
        answer = refused(Refusal(status, reason, message))
        _respond(exchange, answer)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_ACCEPTS_MAX):
            try:
                connected, address = listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:
                continue
            except OSError as error:
                if error.errno not in _OUT_OF_FILES:
                    raise
                _log.warning("cannot accept connections: %s; raise the limit of open files", error.strerror)
                self._loop.remove_reader(listener.fileno())
                self._loop.call_later(_ACCEPT_PAUSE_S, self._accept_again, listener)
                return
            if len(self._connections) >= self.settings.connections_max and not self._make_room():
                self.counters.refused_connections += 1
                connected.close()
                continue
            self.counters.connections += 1
            self._empty.clear()
            try:
                connection = Connection(self, self._outbox, connected, _peer(address), self.context)
            except (OSError, ValueError):  # gone already
                connected.close()
                continue
            self._connections[connection] = None
            self._shaking.arm(connection)

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._loop.add_reader(listener.fileno(), self._accept, listener)

    def _make_room(self) -> bool:
        oldest = self._idle.oldest()
        if oldest is None:
            return False
        oldest.abort()
        return True

    def _too_slow(self, connection: Connection) -> None:
        self.counters.count_dropped("slow request")
        connection.abort()

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            self._loop.remove_reader(listener.fileno())
            listener.close()
        self._listeners.clear()

    async def _serve(self, exchange: Exchange) -> None:
        target = self._route(exchange.request)
        self.counters.requests += 1
        try:
            try:
                await self._answer(exchange, target)
            except Refusal as refusal:
                if exchange.status:
                    raise
                answer = refused(refusal, target, exchange.request)
                _respond(exchange, answer)
        except asyncio.CancelledError:
            raise
        except ConnectionError as error:
            _log.info("%s: %s", _name(exchange.request), error)
            exchange.abort()
        except Exception:
            _log.exception("%s failed", _name(exchange.request))
            self.counters.errors += 1
            self._fail(exchange)
        finally:
            exchange.task = None

    async def _answer(self, exchange: Exchange, target: Target | None) -> None:
        if target is None:
            await self._forward(exchange, "not cached")
            return
        admitted = await self._gate.admit(target, exchange.request)
        if isinstance(admitted, Forward):
            await self._forward(exchange, admitted.reason)
            return
        if exchange.trace is not None and isinstance(admitted, Admitted):
            exchange.trace.admitted(admitted.user.info)
        answer = await self._reader.answer(target, exchange.request)
        if isinstance(answer, Forward):
            await self._forward(exchange, answer.reason)
        elif isinstance(answer, Answer):
            await write_answer(exchange, answer, self.settings)
        else:
            await self._watch(exchange, answer)

    async def _forward(self, exchange: Exchange, reason: str) -> None:
        self.counters.forwarded += 1
        await self._forwarder.forward(exchange, reason)

    async def _watch(self, exchange: Exchange, watch: Watch) -> None:
        ends_at = self._loop.time() + watch.deadline_s
        headers = [CACHE_CONTROL, *watch.headers, ("Content-Type", watch.content_type)]
        exchange.begin(200, headers)
        for piece in watch.initial():
            exchange.send(piece)
            await asyncio.sleep(0)
            await exchange.room()
        if exchange.done:
            return
        pushed = PushedWatch(exchange, self._framer, self._watch_ended)
        self._watches[pushed] = None
        try:
            pushed.start(watch, ends_at - self._loop.time())
        except Expired:  # the client read the state so slowly that later events were dropped
            self._watches.pop(pushed, None)
            exchange.finish()
            return
        if self._stopping:
            pushed.stop_later(0)

    def _watch_ended(self, pushed: PushedWatch) -> None:
        self._watches.pop(pushed, None)

    def _fail(self, exchange: Exchange) -> None:
        if exchange.status:
            exchange.abort()
            return
        answer = refused(Refusal(500, "InternalError", "the read cache failed; its log says why"))
        exchange.keep_alive = False
        _respond(exchange, answer)


def _respond(exchange: Exchange, answer: Answer) -> None:
    exchange.respond(answer.status, answer.content_type, b"".join(answer.body), [CACHE_CONTROL, *answer.headers])


def _name(request: Request) -> str:
    """The request for logs: as it was sent, because decoded paths may have line breaks; without its parameters."""
    return f"{request.method} {request.target.partition('?')[0]}"


def _peer(address: object) -> str:
    host = str(address[0]) if isinstance(address, tuple) else ""
    with contextlib.suppress(ValueError):
        mapped = getattr(ipaddress.ip_address(host), "ipv4_mapped", None)
        return str(mapped or host)
    return host
