"""One connection of a client: reads HTTP/1.1 requests, and writes the responses in their order."""

from __future__ import annotations

import socket
import ssl
from collections import deque
from typing import Protocol

import httptools

from muster.kube.http1 import heads
from muster.kube.http1.body import Body
from muster.kube.http1.channel import Channel, Outbox
from muster.kube.http1.heads import Header
from muster.readcache.request import Request
from muster.readcache.serving.exchange import Exchange

_PIPELINED_MAX = 16
_DISCARDED_BYTES_MAX = 256 << 10


class Owner(Protocol):
    """The server of a connection."""

    head_bytes_max: int

    def waits_for_head(self, connection: Connection) -> None:
        """The connection waits for the rest of a request, or for the first one after its handshake."""
        ...

    def busy(self, connection: Connection) -> None:
        """A request is served, or the connection is closed: it has no deadline."""
        ...

    def idle(self, connection: Connection) -> None:
        """The connection waits for the next request."""
        ...

    def serve(self, exchange: Exchange) -> None:
        """Answer a request."""
        ...

    def reject(self, exchange: Exchange, status: int, message: str) -> None:
        """Answer a request that is not valid."""
        ...

    def gone(self, connection: Connection) -> None:
        """The connection is closed."""
        ...


class Connection:
    """One connection of a client. One exchange is served at a time; pipelined requests wait.

    Attributes:
        exchange: the request that is served now.
        closing: close after this exchange.
        tunnel: what the client sends after a request for another protocol.
    """

    __slots__ = (
        "_body",
        "_discarded",
        "_head_bytes",
        "_headers",
        "_in_body",
        "_in_head",
        "_owner",
        "_parser",
        "_peer",
        "_queue",
        "_rejected",
        "_target",
        "channel",
        "closing",
        "exchange",
        "tunnel",
    )

    def __init__(
        self, owner: Owner, outbox: Outbox, connected: socket.socket, peer: str, context: ssl.SSLContext | None
    ) -> None:
        self._owner = owner
        self._peer = peer
        self._parser: httptools.HttpRequestParser | None = None
        self._queue: deque[Exchange] = deque()
        self._rejected: tuple[int, str] | None = None
        self._headers: list[Header] | None = None
        self._target = b""
        self._head_bytes = 0
        self._in_head = False
        self._in_body = False
        self._body: Body | None = None
        self._discarded = 0
        self.exchange: Exchange | None = None
        self.tunnel: Body | None = None
        self.closing = False
        self.channel = Channel(outbox, connected, self, context)

    # What the channel calls.

    def ready(self) -> None:
        """The handshake is done: the first request is due."""
        self._owner.waits_for_head(self)

    def received(self, data: bytes) -> None:
        """Parse data."""
        if self.tunnel is not None:
            self.tunnel.feed(data)
            return
        if self._rejected is not None:
            return
        if self._parser is None:
            self._parser = httptools.HttpRequestParser(self)
        self._in_body = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._upgraded(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError as error:
            if not isinstance(error.__context__, _Invalid):
                raise
            self._reject(error.__context__.status, error.__context__.message)
        except httptools.HttpParserError as error:
            self._reject(400, f"the request is not valid HTTP/1.1: {error}")
        if self._in_head or (self._body is not None and not self._in_body):  # also trailers, and extensions of chunks
            self._head_bytes += len(data)
            if self._head_bytes > self._owner.head_bytes_max:
                self._reject(431, _TOO_LARGE)

    def ended(self) -> None:
        """The client sends no more. As in Go's server, it does not wait for the response either."""
        if self.tunnel is not None:
            self.tunnel.end()
        elif self.exchange is not None:
            self.channel.abort()
        else:
            self.channel.close()

    def full(self) -> None:
        """Slow down the response."""
        if self.exchange is not None:
            self.exchange.full()

    def drained(self) -> None:
        """Go on with the response."""
        if self.exchange is not None:
            self.exchange.drained()

    def lost(self, error: Exception | None) -> None:
        """The connection is closed."""
        self._parser = None
        self._queue.clear()
        if self.tunnel is not None:
            self.tunnel.lose(error)
        exchange, self.exchange = self.exchange, None
        self._owner.busy(self)
        if exchange is not None:
            exchange.lost(error)
        self._owner.gone(self)

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A request begins."""
        self._in_head = True
        self._head_bytes = 0
        self._headers = []
        self._target = b""
        if self.exchange is None:
            self._owner.waits_for_head(self)

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        header = (name.decode("latin-1").lower(), value.decode("latin-1"))
        if self._headers is not None:
            self._headers.append(header)
        elif self._body is not None:
            self._body.trailers.append(header)

    def on_headers_complete(self) -> None:
        """The head is complete: queue the request."""
        parser, headers = self._parser, self._headers
        assert parser is not None
        assert headers is not None
        self._in_head, self._in_body, self._head_bytes = False, True, 0
        self._headers = None
        size = len(self._target) + sum(len(name) + len(value) + 4 for name, value in headers)
        if size > self._owner.head_bytes_max:
            raise _Invalid(431, _TOO_LARGE)
        request = self._request(parser.get_method().decode("latin-1"), tuple(headers))
        body = Body(self.channel.pause_reading, self._resume_reading)
        exchange = Exchange(self, request, body)
        exchange.http10 = parser.get_http_version() == "1.0"
        if parser.get_http_version() not in ("1.0", "1.1"):
            raise _Invalid(505, "only HTTP/1.0 and HTTP/1.1 are served")
        if not exchange.http10 and len(request.headers_of("host")) != 1:
            raise _Invalid(400, "the request needs exactly one Host header")
        codings = request.headers_of("transfer-encoding")
        if codings and [coding.strip().lower() for coding in codings] != ["chunked"]:
            raise _Invalid(501, "the only transfer coding that is served is chunked")
        exchange.has_body = bool(codings) or request.header("content-length") not in ("", "0")
        exchange.keep_alive = parser.should_keep_alive()
        exchange.upgrade = parser.should_upgrade() and request.header("upgrade").lower() != "h2c"
        self._body = body
        self._queue.append(exchange)
        if len(self._queue) > _PIPELINED_MAX:
            self.channel.pause_reading()
        self._next()

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._in_body, self._head_bytes = True, 0
        body = self._body
        if body is None:
            return
        if self._is_wanted(body):
            body.feed(data)
            return
        self._discarded += len(data)  # its response is sent already
        if self._discarded > _DISCARDED_BYTES_MAX:
            self.channel.close()

    def on_message_complete(self) -> None:
        """The request is complete."""
        body, self._body = self._body, None
        self._discarded = 0
        if body is not None:
            body.end()
            if self.exchange is None:
                self._next()

    # What the exchange calls.

    def write(self, data: bytes) -> None:
        """Send data to the client."""
        self.channel.write(data)

    def set_patient(self, patient: bool) -> None:
        """Choose whether the client may take as long as it likes."""
        self.channel.set_patient(patient)

    def abort(self) -> None:
        """Close at once."""
        self.channel.abort()

    def finished(self, exchange: Exchange) -> None:
        """The response is complete: serve the next request, or wait for it."""
        if exchange is not self.exchange:
            return
        self.exchange = None
        self.channel.set_patient(False)
        if not exchange.keep_alive or self.closing:
            self.channel.close()
            return
        if not exchange.body.complete:
            exchange.body.discard()
            if exchange.request.header("expect"):  # the client may never send it
                self.channel.close()
                return
            self.channel.resume_reading()
            self._owner.waits_for_head(self)
            return
        self._next()

    def close(self) -> None:
        """Close as soon as no request is served."""
        self.closing = True
        if self.exchange is None and not self.channel.closed:
            self.channel.close()

    def _next(self) -> None:
        if self.exchange is not None or self.channel.closed:
            return
        if self._queue:
            exchange = self.exchange = self._queue.popleft()
            self._owner.busy(self)
            self._resume_reading()
            self._owner.serve(exchange)
        elif self._rejected is not None:
            self._send_rejection()
        elif self._in_head:
            self._owner.waits_for_head(self)
        else:
            self._owner.idle(self)

    def _is_wanted(self, body: Body) -> bool:
        if self.exchange is not None and self.exchange.body is body:
            return True
        return any(waiting.body is body for waiting in self._queue)

    def _resume_reading(self) -> None:
        if len(self._queue) <= _PIPELINED_MAX:
            self.channel.resume_reading()

    def _request(self, method: str, headers: tuple[Header, ...]) -> Request:
        raw, query = heads.path_and_query(self._target.decode("latin-1"))
        path = heads.unescape(raw, plus=False)
        if path is None or not (raw.startswith("/") or (raw == "*" and method == "OPTIONS")):
            raise _Invalid(400, f"the path is not valid: {raw[:100]}")
        return Request(
            method,
            f"{raw}?{query}" if query else raw,
            path,
            heads.parse_query(query),
            headers,
            self._peer,
            self.channel.certificate,
        )

    def _upgraded(self, rest: bytes) -> None:
        last = self._queue[-1] if self._queue else self.exchange
        if last is not None and last.upgrade:
            self.tunnel = Body(self.channel.pause_reading, self.channel.resume_reading)
            if rest:
                self.tunnel.feed(rest)
            return
        self._parser = None  # declines the offer: the connection stays HTTP/1.1
        if rest:
            self.received(rest)

    def _reject(self, status: int, message: str) -> None:
        self._in_head = False
        self._rejected = (status, message)
        if self._body is not None and self.exchange is not None and self.exchange.body is self._body:
            self.channel.abort()  # the body of the running request is broken
        else:
            self._next()

    def _send_rejection(self) -> None:
        assert self._rejected is not None
        status, message = self._rejected
        nothing = Body(self.channel.pause_reading, self.channel.resume_reading)
        nothing.end()
        exchange = self.exchange = Exchange(self, Request("GET", "", "", {}, (), self._peer), nothing)
        exchange.keep_alive = False
        self._owner.busy(self)
        self._owner.reject(exchange, status, message)


_TOO_LARGE = "the request line and headers are too large"


class _Invalid(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
