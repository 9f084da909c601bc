"""One request and its response."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

from muster.kube.http1 import heads
from muster.kube.http1.body import Body
from muster.kube.http1.heads import Header
from muster.kube.objects.auth import UserInfo
from muster.readcache.request import Request

_BODYLESS = frozenset({204, 304})


class Carrier(Protocol):
    """The connection of an exchange."""

    closing: bool
    tunnel: Body | None

    def write(self, data: bytes) -> None:
        """Send data to the client."""
        ...

    def set_patient(self, patient: bool) -> None:
        """Choose whether the client may take as long as it likes."""
        ...

    def finished(self, exchange: Exchange) -> None:
        """The response is complete."""
        ...

    def abort(self) -> None:
        """Close the connection at once, so that the client sees that the response is not complete."""
        ...


class Stream(Protocol):
    """A response that is pushed, without a task."""

    def full(self) -> None:
        """The client does not keep up."""
        ...

    def drained(self) -> None:
        """The client has taken everything."""
        ...

    def lost(self) -> None:
        """The client is gone."""
        ...

    def stop(self) -> None:
        """End the response soon: the server stops."""
        ...


class Trace(Protocol):
    """Follows one request for the request log."""

    def admitted(self, user: UserInfo) -> None:
        """The user is known."""
        ...

    def opened(self) -> None:
        """The response begins."""
        ...

    def count(self, data: bytes, *, framed: bool) -> None:
        """A part of the body is sent. `framed` says that events have their lengths in front."""
        ...

    def ended(self, code: int) -> None:
        """The response is complete, or broke off."""
        ...


class Exchange:
    """One request and its response.

    Attributes:
        request: the head of the request.
        body: the body of the request.
        has_body: whether the request has one.
        http10: the client speaks HTTP/1.0.
        keep_alive: the client allows another request on this connection.
        upgrade: the client asks for another protocol.
        status: of the response, 0 before it has begun.
        sent_bytes: of the response's body.
        done: the response is complete, or the client is gone.
        task: what serves the request now.
        stream: what pushes the response, once no task does.
        trace: receives what is sent, for the request log; None if it is off.
    """

    __slots__ = (
        "_carrier",
        "_chunked",
        "_framed",
        "_full",
        "_headless",
        "_waiter",
        "body",
        "done",
        "has_body",
        "http10",
        "keep_alive",
        "request",
        "sent_bytes",
        "status",
        "stream",
        "task",
        "trace",
        "upgrade",
    )

    def __init__(self, carrier: Carrier, request: Request, body: Body) -> None:
        self._carrier = carrier
        self.request = request
        self.body = body
        self.has_body = False
        self.http10 = False
        self.keep_alive = True
        self.upgrade = False
        self.status = 0
        self.sent_bytes = 0
        self.done = False
        self.task: asyncio.Task[None] | None = None
        self.stream: Stream | None = None
        self.trace: Trace | None = None
        self._framed = False
        self._chunked = False
        self._headless = False
        self._full = False
        self._waiter: asyncio.Future[None] | None = None

    @property
    def tunnel(self) -> Body | None:
        """What the client sends after its request, if that asked for another protocol."""
        return self._carrier.tunnel

    def respond(self, status: int, content_type: str, body: bytes, headers: Iterable[Header] = ()) -> None:
        """Send a whole response."""
        all_headers = [*headers, ("Content-Type", content_type)]
        self.begin(status, all_headers, length=len(body), first=b"" if self.request.method == "HEAD" else body)
        self.finish()

    def begin(self, status: int, headers: Iterable[Header], *, length: int | None = None, first: bytes = b"") -> None:
        """Send the head of the response, and the first bytes of its body.

        Args:
            status: code.
            headers: end-to-end headers without Content-Length.
            length: of the body; None if it is not known.
            first: the beginning of the body.
        """
        lines = list(headers)
        self._headless = status in _BODYLESS or self.request.method == "HEAD"
        if length is not None:
            lines.append(("Content-Length", str(length)))
        elif not self._headless:
            self._chunked = not self.http10
            if self._chunked:
                lines.append(("Transfer-Encoding", "chunked"))
            else:
                self.keep_alive = False
        self._send_head(status, lines, first)

    def switch(self, headers: Iterable[Header]) -> None:
        """Send the head of a 101 response. What follows is another protocol."""
        self.keep_alive = False
        self.status = 101
        self._carrier.write(heads.response_head(101, headers))

    def inform(self, status: int, headers: Iterable[Header]) -> None:
        """Send an informational response."""
        if not self.http10 and not self.status:
            self._carrier.write(heads.response_head(status, headers))

    def send(self, data: bytes) -> None:
        """Send a part of the body."""
        if data and not self._headless:
            self.sent_bytes += len(data)
            if self.trace is not None:
                self.trace.count(data, framed=self._framed)
            self._carrier.write(heads.chunk(data) if self._chunked else data)

    def send_framed(self, data: bytes, framed: bytes) -> None:
        """Send a part of the body that is already framed as a chunk."""
        self.sent_bytes += len(data)
        if self.trace is not None:
            self.trace.count(data, framed=self._framed)
        self._carrier.write(framed if self._chunked else data)

    def finish(self, trailers: Iterable[Header] = ()) -> None:
        """End the response."""
        if self.done:
            return
        self.done = True
        self.stream = None
        if self._chunked:
            self._carrier.write(heads.last_chunk(trailers))
        if self.trace is not None:
            self.trace.ended(self.status)
        self._carrier.finished(self)

    def forwarded(self) -> None:
        """The response comes from the API server. Like that, wait for a slow client, such as a log in a pager."""
        self._carrier.set_patient(True)

    def abort(self) -> None:
        """Close the connection, so that the client sees that the response is not complete."""
        self._carrier.abort()

    async def room(self) -> None:
        """Wait until the client has taken what was sent, if that is much."""
        if self._full:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def full(self) -> None:
        """The client does not keep up."""
        self._full = True
        if self.stream is not None:
            self.stream.full()

    def drained(self) -> None:
        """The client has taken everything."""
        self._full = False
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        if self.stream is not None:
            self.stream.drained()

    def lost(self, error: Exception | None) -> None:
        """The client is gone."""
        was_done, self.done = self.done, True
        self.body.lose(error)
        if self.task is not None:
            self.task.cancel()
        if self.stream is not None:
            self.stream.lost()
            self.stream = None
        if self.trace is not None and not was_done:
            self.trace.ended(self.status)

    def _send_head(self, status: int, lines: list[Header], first: bytes) -> None:
        self.status = status
        if self._carrier.closing or self.upgrade or not self.keep_alive:
            self.keep_alive = False
            lines.append(("Connection", "close"))
        elif self.http10:
            lines.append(("Connection", "keep-alive"))
        if not any(name.lower() == "date" for name, _ in lines):
            lines.append(("Date", heads.date()))
        self.sent_bytes += len(first)
        if self.trace is not None:
            self._framed = any(name.lower() == "content-type" and "protobuf" in value for name, value in lines)
            self.trace.opened()
            if first:
                self.trace.count(first, framed=self._framed)
        if first and self._chunked:
            first = heads.chunk(first)
        self._carrier.write(heads.response_head(status, lines) + first)
