"""The agent's requests against servers that refuse, close, stall and talk nonsense: each is an error it can act on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from muster.agent.api import AgentApi, retry_after_s
from muster.kube.config import ClusterConfig
from muster.kube.credentials import Anonymous
from muster.kube.errors import ApiError, NotFound, ServerTimeout, TooManyRequests, Unauthorized, Unavailable

Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[bool]]
"""Answers one request (its head and body); whether the connection stays open."""

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """An HTTP server whose answers are given; it counts connections and keeps requests."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.connections = 0
        self.requests: list[bytes] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0
                )
                self.requests.append(head + await reader.readexactly(length))
                if not await self._answer(self.requests[-1], writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Server]:
    made = Server(answer)
    listener = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/base"
    yield made
    listener.close()


def always(data: bytes, *, keep: bool = True) -> Answer:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(data)
        await writer.drain()
        return keep

    return answer


def api(server: Server, credentials: Anonymous | None = None, timeout_s: float = 30.0) -> AgentApi:
    config = ClusterConfig(server=server.url, credentials=credentials or Anonymous())
    return AgentApi(config, user_agent="muster-agent/test", timeout_s=timeout_s)


def status(code: int, reason: str, *headers: bytes) -> bytes:
    body = f'{{"kind":"Status","reason":"{reason}","message":"no","code":{code}}}'.encode()
    head = [f"HTTP/1.1 {code} X".encode(), f"Content-Length: {len(body)}".encode(), *headers]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


async def test_requests_share_a_connection_and_say_who_asks() -> None:
    async with serving(always(OK)) as server:
        asking = api(server)
        for _ in range(3):
            assert await asking.request("PATCH", "/x", b"[]", "application/json-patch+json") == b"{}"
        asking.close()
    assert server.connections == 1
    assert server.requests[0].startswith(b"PATCH /base/x HTTP/1.1\r\n")
    assert b"User-Agent: muster-agent/test" in server.requests[0]
    assert server.requests[0].endswith(b"\r\n\r\n[]")


async def test_a_connection_that_the_server_closed_meanwhile_is_made_anew() -> None:
    async with serving(always(OK, keep=False)) as server:
        asking = api(server)
        for _ in range(3):
            assert await asking.request("GET", "/x") == b"{}"
        asking.close()
    assert server.connections == 3


@pytest.mark.parametrize(
    ("data", "kind", "wait_s"),
    [
        (status(429, "TooManyRequests", b"Retry-After: 7"), TooManyRequests, 7.0),
        (status(503, "ServiceUnavailable", b"Retry-After: 86400"), Unavailable, 600.0),
        (status(404, "NotFound"), NotFound, None),
        (b"HTTP/1.1 502 X\r\nContent-Length: 3\r\n\r\nbad", Unavailable, None),
        (b"\x16\x03\x01 this is no HTTP\r\n\r\n", Unavailable, None),
        (b"HTTP/1.1 200 OK\r\nContent-Length: nonsense\r\n\r\n", None, None),
        (b"", Unavailable, None),
    ],
)
async def test_whatever_is_answered_is_an_answer_or_an_error(
    data: bytes, kind: type[ApiError] | None, wait_s: float | None
) -> None:
    async with serving(always(data, keep=False)) as server:
        asking = api(server)
        if kind is None:
            assert await asking.request("GET", "/x") == b""
        else:
            with pytest.raises(kind) as raised:
                await asking.request("GET", "/x")
            assert retry_after_s(raised.value) == wait_s
        asking.close()


async def test_nobody_there_is_an_error() -> None:
    async with serving(always(OK)) as server:
        pass
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
        await api(server).request("GET", "/x")


async def test_a_server_that_never_answers_is_given_up_and_asked_again_once_it_does() -> None:
    stalls = asyncio.Event()

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        if not stalls.is_set():
            await asyncio.sleep(3600)
        writer.write(OK)
        return True

    async with serving(answer) as server:
        asking = api(server, timeout_s=0.3)
        with pytest.raises((ServerTimeout, Unavailable)):
            await asking.request("GET", "/x")
        stalls.set()
        while True:
            try:
                assert await asking.request("GET", "/x") == b"{}"
                break
            except (ServerTimeout, Unavailable):  # what was left behind has not come back yet
                await asyncio.sleep(0.05)
        asking.close()


class Rotated(Anonymous):
    """A token file: the first token has expired."""

    def __init__(self) -> None:
        self.token = "old"

    async def authorization(self) -> str:
        return f"Bearer {self.token}"

    def invalidate(self, rejected: str) -> bool:
        self.token = "new"
        return rejected.endswith("old")


async def test_a_token_that_expired_is_read_again_once() -> None:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(OK if b"Bearer new" in request else status(401, "Unauthorized"))
        return True

    async with serving(answer) as server:
        asking = api(server, Rotated())
        assert await asking.request("GET", "/x") == b"{}"
        asking.close()
    async with serving(always(status(401, "Unauthorized"))) as server:
        asking = api(server, Rotated())
        with pytest.raises(Unauthorized):
            await asking.request("GET", "/x")
        asking.close()
    assert len(server.requests) == 2
