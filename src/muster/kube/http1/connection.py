"""A connection to a server: sends requests, and receives responses as they arrive."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
from collections import deque
from collections.abc import Callable

import httptools

from muster.kube.http1.body import Body
from muster.kube.http1.channel import Channel, Outbox
from muster.kube.http1.heads import Header

_BODYLESS = frozenset({204, 304})


class NotConnected(ConnectionError):
    """The server could not be reached: it has not seen the request."""


class Unanswered(ConnectionError):
    """The connection broke before the response began."""


class Response:
    """The head of a response, and its body as it arrives.

    Attributes:
        length: of the body, None if the server did not say it.
    """

    __slots__ = ("body", "headers", "length", "status")

    def __init__(self, status: int, headers: list[Header], body: Body, length: int | None) -> None:
        self.status = status
        self.headers = headers
        self.body = body
        self.length = length


class UpstreamConnection:
    """One connection to a server, for one request at a time.

    Attributes:
        tunnel: what the server sends after a 101 response.
        reusable: another request may follow.
        used: it has carried a request.
    """

    def __init__(
        self,
        connected: socket.socket,
        outbox: Outbox,
        context: ssl.SSLContext | None,
        hostname: str,
        head_bytes_max: int,
        on_lost: Callable[[UpstreamConnection], None],
    ) -> None:
        self._on_lost = on_lost
        self._head_bytes_max = head_bytes_max
        self._parser: httptools.HttpResponseParser | None = None
        self._responses: deque[Response] = deque()
        self._headers: list[Header] = []
        self._in_head = False
        self._length: int | None = None
        self._chunked = False
        self._bytes_without_body = 0
        self._body: Body | None = None
        self._head_only = self._until_close = False
        self._error: Exception | None = None
        self._full = False
        self._waiters: list[asyncio.Future[None]] = []
        self._shaken = False
        self.tunnel: Body | None = None
        self.reusable = False
        self.used = False
        self.channel = Channel(outbox, connected, self, context, hostname if context is not None else None)

    async def handshake(self) -> None:
        """Wait for TLS. Raises NotConnected."""
        while not self._shaken:
            if self._error is not None:
                raise NotConnected(str(self._error))
            await self._change()

    def begin(self, head: bytes, *, head_only: bool) -> None:
        """Send the head of a request, and maybe its body. `head_only`: the response will have no body."""
        self._parser = httptools.HttpResponseParser(self)
        self._head_only = head_only
        self._body = None
        self._bytes_without_body = 0
        self._responses.clear()
        self.reusable = False
        self.channel.write(head)

    def rest(self) -> None:
        """The request is over. Bytes that the server sends before the next one close the connection."""
        self._parser = None
        self.channel.resume_reading()  # if the end of the answer was not read

    def check(self) -> None:
        """Close the connection if bytes or an end have arrived since `rest`, also those still in the kernel."""
        self.channel.read_now()

    async def response(self) -> Response:
        """Return the next response, informational ones too. Raises Unanswered."""
        while not self._responses:
            if self._error is not None:
                raise Unanswered(str(self._error))
            await self._change()
        return self._responses.popleft()

    async def room(self) -> None:
        """Wait until the server has taken what was sent, if that is much. Raises ConnectionError."""
        while self._full and self._error is None:
            await self._change()
        if self._error is not None:
            raise Unanswered(str(self._error))

    # What the channel calls.

    def ready(self) -> None:
        """The handshake is done."""
        self._shaken = True
        self._changed()

    def received(self, data: bytes) -> None:
        """Parse data."""
        if self.tunnel is not None:
            self.tunnel.feed(data)
            return
        if self._parser is None:
            self.channel.abort(ConnectionError("the server sent data without a request"))
            return
        self._bytes_without_body += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._pass_on(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            self.channel.abort(ConnectionError(f"the response is not valid HTTP/1.1: {error}"))
            return
        if self._bytes_without_body > self._head_bytes_max:
            what = "head" if self._body is None else "trailer"
            self.channel.abort(ConnectionError(f"the {what} of the response is too large"))

    def ended(self) -> None:
        """The server sends no more."""
        if self.tunnel is not None:
            self.tunnel.end()
            return
        if self._body is not None and self._until_close:
            self._body.end()
        self.channel.abort(ConnectionError("the server closed the connection"))

    def full(self) -> None:
        """The server does not keep up."""
        self._full = True

    def drained(self) -> None:
        """The server has taken everything."""
        self._full = False
        self._changed()

    def lost(self, error: Exception | None) -> None:
        """The connection is closed."""
        self._error = error or ConnectionError("the connection was closed")
        self._parser = None
        self.reusable = False
        for body in (self._body, self.tunnel):
            if body is not None:
                body.lose(self._error)
        self._on_lost(self)
        self._changed()

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A response begins."""
        if self._body is not None:
            raise ConnectionError("the server sent a second response to a request")
        self._in_head = True
        self._headers = []
        self._length = None
        self._chunked = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer."""
        spelled, lower = _name(name)
        text = value.decode("latin-1")
        if self._in_head:
            self._headers.append((spelled, text))
            if lower == "transfer-encoding":
                self._chunked = True
            elif lower == "content-length" and self._length is None and text.isascii() and text.isdigit():
                self._length = int(text)
        elif self._body is not None:
            self._body.trailers.append((spelled, text))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        parser = self._parser
        assert parser is not None
        self._in_head = False
        status = parser.get_status_code()
        body = Body(self.channel.pause_reading, self.channel.resume_reading)
        length = None if self._chunked else self._length
        if status >= 200:
            self._body = body
            self.reusable = parser.should_keep_alive()
            if self._head_only or status in _BODYLESS:
                self.reusable = self.reusable and status in _BODYLESS
                body.end()
            else:
                self._until_close = length is None and not self._chunked
                self.reusable = self.reusable and not self._until_close
        elif status == 101:
            self.tunnel = Body(self.channel.pause_reading, self.channel.resume_reading)
        self._responses.append(Response(status, self._headers, body, length))
        self._headers = []
        self._changed()

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._bytes_without_body = 0
        if self._body is not None:
            self._body.feed(data)

    def on_message_complete(self) -> None:
        """The response is complete."""
        if self._body is not None:
            self._body.end()

    def _pass_on(self, rest: bytes) -> None:
        if self.tunnel is not None and rest:
            self.tunnel.feed(rest)

    async def _change(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    def _changed(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


@functools.lru_cache(maxsize=256)
def _name(name: bytes) -> tuple[str, str]:
    """Return the name of a header as it was sent, and in lower case. A server sends the same few names each time."""
    text = name.decode("latin-1")
    return text, text.lower()
