"""A forward proxy on loopback that carries the store's requests of readers: it knows each connection's job.

It marks the sockets, obeys the job's rate, and checks the address that a name really resolves to. So a reader cannot
make the node connect to services that trust the node itself.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import secrets
import socket
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from muster.data.cache.addresses import may_connect
from muster.data.cache.marks import Marks
from muster.data.cache.rates import Rates

log = logging.getLogger(__name__)

MAX_TOKENS: Final = 1024
MAX_CONNECTIONS: Final = 512
_HEAD_BYTES: Final = 64 << 10
_BUFFER_BYTES: Final = 256 << 10
_HEAD_S: Final = 120.0
"""An idle connection of the store's client is closed after this time."""
_CONNECT_S: Final = 10.0
_STALL_S: Final = 120.0


class Refused(Exception):
    """A request of the client is refused. `status` is its HTTP status."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


class Egress:
    """The proxy.

    Args:
        rates: of jobs; bytes of both directions count.
        marks: of jobs.
        loopback: whether stores on this machine may be reached.
    """

    def __init__(self, rates: Rates, marks: Marks, loopback: bool) -> None:
        self._rates = rates
        self._marks = marks
        self._loopback = loopback
        self._tokens: OrderedDict[str, str] = OrderedDict()
        self._port = 0
        self._connections: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        """Serve until cancelled. Raises OSError."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as listener:
            listener.setblocking(False)
            listener.bind(("127.0.0.1", 0))
            listener.listen(256)
            self._port = listener.getsockname()[1]
            try:
                while True:
                    try:
                        client, _ = await loop.sock_accept(listener)
                    except OSError as error:
                        log.warning("could not accept a connection: %s", error.strerror)
                        await asyncio.sleep(0.1)
                        continue
                    if len(self._connections) >= MAX_CONNECTIONS:
                        client.close()
                        continue
                    client.setblocking(False)
                    task = asyncio.create_task(self._attend(client))
                    self._connections.add(task)
                    task.add_done_callback(self._connections.discard)
            finally:
                for task in list(self._connections):
                    task.cancel()

    def url(self, job: str) -> str:
        """Return the proxy's URL for a job. It holds a password, because all processes of the node reach the port."""
        token = next((each for each, known in self._tokens.items() if known == job), None)
        if token is None:
            token = secrets.token_hex(16)
            while len(self._tokens) >= MAX_TOKENS:
                self._tokens.popitem(last=False)
            self._tokens[token] = job
        self._tokens.move_to_end(token)
        return f"http://job:{token}@127.0.0.1:{self._port}"

    async def _attend(self, client: socket.socket) -> None:
        upstream: _Upstream | None = None
        rest = b""
        with client:
            try:
                while True:
                    head = await _read_head(client, rest)
                    if head is None:
                        return
                    job = self._job(head)
                    if upstream is None or upstream.authority != head.authority or head.method == "CONNECT":
                        if upstream is not None:
                            await upstream.close()
                        upstream = await self._connect(head, job, client)
                    if head.method == "CONNECT":
                        await _send(client, b"HTTP/1.1 200 Connection established\r\n\r\n")
                        await self._tunnel(client, upstream, job, head.rest)
                        return
                    rest = await self._forward(client, upstream, job, head)
            except Refused as refused:
                with contextlib.suppress(OSError):
                    await _send(
                        client, f"HTTP/1.1 {refused.status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
                    )
            except (OSError, TimeoutError, EOFError):
                pass  # one of the two sides is gone
            finally:
                if upstream is not None:
                    await upstream.close()

    def _job(self, head: _Head) -> str:
        scheme, _, text = head.headers.get("proxy-authorization", "").partition(" ")
        try:
            password = base64.b64decode(text, validate=True).decode().partition(":")[2]
        except ValueError:
            password = ""
        job = self._tokens.get(password) if scheme.lower() == "basic" else None
        if job is None:
            raise Refused("407 Proxy Authentication Required")
        return job

    async def _connect(self, head: _Head, job: str, client: socket.socket) -> _Upstream:
        """Connect to the store, and begin to pass its answers on unless the client asked for a tunnel."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_CONNECT_S):
                found = await loop.getaddrinfo(head.host, head.port, type=socket.SOCK_STREAM)
                allowed = [each for each in found if may_connect(str(each[4][0]), self._loopback)]
                if not allowed:
                    raise Refused("403 Forbidden")
                connection = await self._first(allowed, job)
        except (OSError, TimeoutError):
            raise Refused("502 Bad Gateway") from None
        upstream = _Upstream(head.authority, connection)
        if head.method != "CONNECT":
            upstream.answers = asyncio.create_task(self._answers(upstream, client, job))
        return upstream

    async def _first(self, addresses: Sequence[tuple[Any, ...]], job: str) -> socket.socket:
        """Connect to the first address that answers. Raises OSError."""
        problem: OSError = OSError("no address")
        for family, kind, protocol, _, address in addresses:
            connection = socket.socket(family, kind, protocol)
            try:
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._marks.set(connection, job)
                await asyncio.get_running_loop().sock_connect(connection, address)
                return connection
            except OSError as error:
                connection.close()
                problem = error
            except BaseException:
                connection.close()
                raise
        raise problem

    async def _forward(self, client: socket.socket, upstream: _Upstream, job: str, head: _Head) -> bytes:
        """Send a plain HTTP request on, and return what the client sent behind it."""
        await _send(upstream.connection, head.for_origin())
        length = head.length()
        body, rest = head.rest[:length], head.rest[length:]
        await _send(upstream.connection, body)
        left = length - len(body)
        buffer = memoryview(bytearray(min(left, _BUFFER_BYTES)))
        while left > 0:
            got = await _receive(client, buffer[: min(left, len(buffer))])
            if not got:
                raise EOFError
            await self._pace(job, got)
            await _send(upstream.connection, buffer[:got])
            left -= got
        return rest

    async def _answers(self, upstream: _Upstream, client: socket.socket, job: str) -> None:
        with contextlib.suppress(OSError, TimeoutError):
            await self._copy(upstream.connection, client, job)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)  # the store ended the connection, so the client's ends too

    async def _tunnel(self, client: socket.socket, upstream: _Upstream, job: str, rest: bytes) -> None:
        await _send(upstream.connection, rest)
        copies = {
            asyncio.create_task(self._copy(client, upstream.connection, job)),
            asyncio.create_task(self._copy(upstream.connection, client, job)),
        }
        try:
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)

    async def _copy(self, source: socket.socket, target: socket.socket, job: str) -> None:
        buffer = memoryview(bytearray(_BUFFER_BYTES))
        while got := await _receive(source, buffer):
            await self._pace(job, got)
            await _send(target, buffer[:got])

    async def _pace(self, job: str, count: int) -> None:
        pause_s = self._rates.take(job, count)
        if pause_s > 0:
            await asyncio.sleep(pause_s)


class _Upstream:
    """A connection to a store."""

    def __init__(self, authority: str, connection: socket.socket) -> None:
        self.authority = authority
        self.connection = connection
        self.answers: asyncio.Task[None] | None = None

    async def close(self) -> None:
        if self.answers is not None:
            self.answers.cancel()
            await asyncio.gather(self.answers, return_exceptions=True)
        self.connection.close()


class _Head:
    """The head of a request. Raises Refused."""

    def __init__(self, text: bytes, rest: bytes) -> None:
        first, *lines = text.decode("latin-1").split("\r\n")
        parts = first.split(" ")
        if len(parts) != 3:
            raise Refused("400 Bad Request")
        self.method, target, _ = parts
        self.rest = rest
        self._lines = lines
        self.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        url = urlsplit(f"//{target}" if self.method == "CONNECT" else target)
        try:
            port = url.port
        except ValueError:
            raise Refused("400 Bad Request") from None
        if not url.hostname or (self.method != "CONNECT" and url.scheme != "http"):
            raise Refused("400 Bad Request")
        self.host, self.port = url.hostname, port or (443 if self.method == "CONNECT" else 80)
        self.authority = f"{self.host}:{self.port}"
        self._path = (url.path or "/") + (f"?{url.query}" if url.query else "")

    def length(self) -> int:
        """Length of the body."""
        if "transfer-encoding" in self.headers:
            raise Refused("411 Length Required")
        text = self.headers.get("content-length", "0")
        if not text.isdigit():
            raise Refused("400 Bad Request")
        return int(text)

    def for_origin(self) -> bytes:
        """The head as the store expects it: a path instead of a URL, and nothing for proxies."""
        kept = [line for line in self._lines if not line.lower().startswith("proxy-")]
        return "\r\n".join([f"{self.method} {self._path} HTTP/1.1", *kept, "", ""]).encode("latin-1")


async def _read_head(client: socket.socket, begun: bytes) -> _Head | None:
    """Read the head of a request; None at the end of the connection. Raises Refused, OSError, TimeoutError."""
    data = begun
    while b"\r\n\r\n" not in data:
        if len(data) > _HEAD_BYTES:
            raise Refused("431 Request Header Fields Too Large")
        async with asyncio.timeout(_HEAD_S):
            more = await asyncio.get_running_loop().sock_recv(client, _HEAD_BYTES)
        if not more:
            return None
        data += more
    text, _, rest = data.partition(b"\r\n\r\n")
    return _Head(text, rest)


async def _receive(source: socket.socket, buffer: memoryview) -> int:
    async with asyncio.timeout(_STALL_S):
        return await asyncio.get_running_loop().sock_recv_into(source, buffer)


async def _send(target: socket.socket, data: bytes | memoryview) -> None:
    if len(data):
        async with asyncio.timeout(_STALL_S):
            await asyncio.get_running_loop().sock_sendall(target, data)
