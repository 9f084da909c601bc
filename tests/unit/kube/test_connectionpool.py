"""Connections that are kept: bytes that were not asked for never become the answer to the next request."""

from __future__ import annotations

import asyncio
import fcntl
import socket
import ssl
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from muster.kube.http1.body import FULL_BYTES
from muster.kube.http1.connection import UpstreamConnection
from muster.kube.http1.pool import Pool, PoolSettings
from tests.support.waiting import eventually, until
from tests.unit.readcache.serving.stand_ins import tls_contexts

_FIN_WAIT1 = 4  # include/net/tcp_states.h

SETTINGS = PoolSettings(
    connect_s=60, idle_s=30, idle_max=4, full_bytes=1 << 20, head_bytes_max=1 << 16, waiting_bytes_max=1 << 22
)
REQUEST = b"GET / HTTP/1.1\r\nHost: s\r\n\r\n"


def answer(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


class Server:
    """A server whose test accepts connections and answers by hand, without the event loop."""

    def __init__(self, listener: socket.socket, context: ssl.SSLContext | None) -> None:
        self._listener = listener
        self._context = context
        self.port = int(listener.getsockname()[1])

    def accept(self) -> socket.socket:
        connected, _ = self._listener.accept()
        connected.settimeout(60)
        if self._context is not None:
            connected = self._context.wrap_socket(connected, server_side=True)
        return connected


@pytest.fixture(params=["plain", "tls"])
def contexts(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """TLS of the server and of the client."""
    if request.param == "plain":
        return None, None
    server, client, _ = tls_contexts(tmp_path)
    return server, client


@pytest.fixture
def server(contexts: tuple[ssl.SSLContext | None, ssl.SSLContext | None]) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        yield Server(listener, contexts[0])


@pytest.fixture
async def pool(contexts: tuple[ssl.SSLContext | None, ssl.SSLContext | None], server: Server) -> AsyncIterator[Pool]:
    scheme = "http" if contexts[1] is None else "https"
    made = Pool(f"{scheme}://127.0.0.1:{server.port}", contexts[1], SETTINGS)
    yield made
    made.close()


@asynccontextmanager
async def connected(pool: Pool, server: Server) -> AsyncIterator[tuple[UpstreamConnection, socket.socket]]:
    """Take a connection. Yields it, and the server's end."""
    accepting = asyncio.create_task(asyncio.to_thread(server.accept))
    connection = await pool.take()
    with await accepting as peer:
        yield connection, peer


async def ask(connection: UpstreamConnection, peer: socket.socket, body: bytes) -> bytes:
    """Send a request, let the server answer, and return the body that arrives."""
    connection.begin(REQUEST, head_only=False)
    assert await asyncio.to_thread(peer.recv, 4096) == REQUEST
    peer.sendall(answer(body))
    response = await connection.response()
    found = b""
    while data := await response.body.read():
        found += data
    return found


def arrived(peer: socket.socket) -> None:
    """Wait until what the server sent has arrived, and also the end. The event loop does not see it before.

    On a busy machine the kernel delivers it after the call.
    """
    eventually("the bytes have arrived", lambda: fcntl.ioctl(peer, termios.TIOCOUTQ, bytes(4)) == bytes(4))
    eventually("the end has arrived", lambda: peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _FIN_WAIT1)


async def test_connection_is_used_again(pool: Pool, server: Server) -> None:
    async with connected(pool, server) as (first, peer):
        assert await ask(first, peer, b"one") == b"one"
        pool.give_back(first)
        second = await pool.take()
        assert second is first
        assert await ask(second, peer, b"two") == b"two"


@pytest.mark.parametrize("late", [answer(b"late"), b"x"], ids=["answer", "byte"])
async def test_connection_with_bytes_that_were_not_asked_for_is_not_used_again(
    pool: Pool, server: Server, late: bytes
) -> None:
    async with connected(pool, server) as (first, peer):
        await ask(first, peer, b"one")
        pool.give_back(first)
        peer.sendall(late)
        arrived(peer)
        async with connected(pool, server) as (second, new_peer):
            assert second is not first
            assert await ask(second, new_peer, b"two") == b"two"


async def test_older_connection_is_used_if_the_newest_has_ended(pool: Pool, server: Server) -> None:
    async with connected(pool, server) as (first, first_peer), connected(pool, server) as (second, second_peer):
        for connection, peer in ((first, first_peer), (second, second_peer)):
            await ask(connection, peer, b"one")
            pool.give_back(connection)
        second_peer.shutdown(socket.SHUT_WR)
        arrived(second_peer)
        assert await pool.take() is first
        assert pool.connections == 1


async def test_connection_whose_answer_was_not_read_still_receives_the_next_one(pool: Pool, server: Server) -> None:
    """The last bytes of this answer pause the connection, because nothing reads it."""
    async with connected(pool, server) as (first, peer):
        first.begin(REQUEST, head_only=False)
        await asyncio.to_thread(peer.recv, 4096)
        sending = asyncio.create_task(asyncio.to_thread(peer.sendall, answer(bytes(FULL_BYTES + 1))))
        response = await first.response()
        await until("the answer is here", lambda: response.body.complete)
        await sending
        pool.give_back(first)
        assert await pool.take() is first
        async with asyncio.timeout(60):
            assert await ask(first, peer, b"two") == b"two"
