"""Answers: streamed at the client's pace, in bounded memory, and never cut without a sign."""

from __future__ import annotations

import asyncio
import gzip
import socket

import msgspec
import pytest

from muster.telemetry.guard.serving.settings import ServingSettings
from tests.support.rawclient import Client, Reply
from tests.support.rawserver import Arrived, Upstream
from tests.support.waiting import until
from tests.unit.telemetry.guard.serving.guarded import ANSWER, QUERY, Guarded, answer, guarded

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
PIECE = b"x" * 50_000
REQUEST = f"GET {QUERY} HTTP/1.1\r\nHost: g\r\n\r\n"
SMALL = ServingSettings(window_bytes=200_000, hold_bytes=1000)


def chunk(data: bytes) -> bytes:
    """Frame a chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def error_of(reply: Reply) -> dict[str, str]:
    """The error in an answer, in the form of Prometheus' API."""
    found: dict[str, str] = msgspec.json.decode(reply.body)
    assert found["status"] == "error"
    return found


def give_up_after(guard: Guarded, timeout_s: float) -> None:
    """Shorten the timeout of the requests."""
    guard.assess.template = msgspec.structs.replace(guard.assess.template, timeout_s=timeout_s)


async def test_answer_is_passed_on_as_prometheus_compressed_it() -> None:
    body = gzip.compress(ANSWER)

    async def script(_: Upstream, arrived: Arrived) -> None:
        assert arrived.headers["accept-encoding"] == "gzip"
        await arrived.send(HEAD + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    async with guarded(script) as guard:
        reply = await guard.get(QUERY, "Accept-Encoding: gzip")
        assert (reply.headers["content-encoding"], reply.body) == ("gzip", body)


async def test_headers_of_one_connection_or_client_are_not_passed_on() -> None:
    async def script(_: Upstream, arrived: Arrived) -> None:
        await arrived.send(
            HEAD + b"Set-Cookie: a=b\r\nServer: secret/1.2\r\nConnection: keep-alive, X-Hop\r\nX-Hop: 1\r\n"
            b"Access-Control-Allow-Origin: *\r\nKeep-Alive: timeout=5\r\nContent-Length: 2\r\n\r\n{}"
        )

    async with guarded(script) as guard:
        reply = await guard.get()
        assert set(reply.headers) == {"content-type", "content-length", "date", "server"}
        assert reply.headers["server"] == "muster-guard"


@pytest.mark.parametrize("status", [400, 422, 503])
async def test_error_of_prometheus_is_passed_on(status: int) -> None:
    async def script(_: Upstream, arrived: Arrived) -> None:
        await arrived.send(b"HTTP/1.1 %d E\r\nContent-Length: 2\r\nRetry-After: 3\r\n\r\n{}" % status)

    async with guarded(script) as guard:
        reply = await guard.get()
        assert (reply.status, reply.headers["retry-after"], reply.body) == (status, "3", b"{}")


async def test_prometheus_that_is_away_gives_an_error_at_once() -> None:
    async with guarded(answer) as guard:
        await guard.upstream.close()
        reply = await guard.get()
        assert (reply.status, error_of(reply)["error"]) == (502, "Prometheus cannot be reached")
        assert guard.outcomes() == ["unreachable"]


async def test_prometheus_that_hangs_before_the_answer_is_given_up() -> None:
    async def script(_: Upstream, arrived: Arrived) -> None:
        await arrived.reader.read()

    async with guarded(script, settings=ServingSettings(head_s=0.1)) as guard:
        give_up_after(guard, 0.1)
        reply = await guard.get()
        assert (reply.status, error_of(reply)["errorType"]) == (504, "timeout")
        await until("the request has ended", lambda: guard.upstream.open == 0)


async def test_prometheus_that_hangs_in_a_short_answer_gives_an_error() -> None:
    async def script(_: Upstream, arrived: Arrived) -> None:
        await arrived.send(CHUNKED + chunk(b"abc"))
        await arrived.reader.read()

    async with guarded(script, settings=ServingSettings(stall_s=0.1)) as guard:
        assert error_of(await guard.get())["error"] == "Prometheus sent nothing for 0.1 s in an answer"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"HTTP/1.1 200",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 999999 What\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"HTTP/1.1 200 OK\r\nBad\x00Header: y\r\n\r\n",
        CHUNKED + b"zz\r\n",
        CHUNKED + chunk(b"abc"),
        HEAD + b"Content-Length: 10\r\n\r\nabc",
        b"\x00" * 100_000,
        b"HTTP/1.1 200 OK\r\n" + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
    ],
)
async def test_garbage_or_a_broken_short_answer_becomes_an_error(sent: bytes) -> None:
    async def script(_: Upstream, arrived: Arrived) -> None:
        await arrived.send(sent)
        raise ConnectionError

    async with guarded(script, settings=SMALL) as guard:
        reply = await guard.get()
        assert (reply.status, error_of(reply)["errorType"]) == (502, "unavailable")
        assert guard.outcomes() == ["broken"]
        assert len(guard.upstream.heads) == 1  # what broke Prometheus is not sent again


@pytest.mark.parametrize(
    ("begins", "without_end"),
    [("2\r\n{}\r\n0\r\n", f"X-More: {'x' * 1000}\r\n"), ("2\r\n{}\r\n0\r\nX-More: ", "x" * 1000), ("2;", "x" * 1000)],
    ids=["trailers", "trailer", "chunk"],
)
async def test_trailer_without_end_is_an_error_and_does_not_grow(begins: str, without_end: str) -> None:
    sent = 0

    async def script(_: Upstream, arrived: Arrived) -> None:
        nonlocal sent
        await arrived.send(f"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{begins}")
        while sent < 64 << 20:
            await arrived.send(without_end)
            sent += len(without_end)

    async with guarded(script) as guard:
        reply = await guard.get()
        assert (reply.status, guard.outcomes()) == (502, ["broken"])
        assert b"the trailer of the response is too large" in reply.body
        assert sent < 32 << 20


async def test_redirect_is_an_error_and_is_not_followed() -> None:
    async def script(_: Upstream, arrived: Arrived) -> None:
        await arrived.send(b"HTTP/1.1 302 Found\r\nLocation: http://secret/login\r\nContent-Length: 0\r\n\r\n")

    async with guarded(script) as guard:
        reply = await guard.get()
        assert reply.status == 502
        assert "location" not in reply.headers
        assert len(guard.upstream.heads) == 1


async def test_answer_that_breaks_off_late_ends_without_the_last_chunk() -> None:
    begun = asyncio.Event()

    async def script(_: Upstream, arrived: Arrived) -> None:
        await arrived.send(CHUNKED + chunk(PIECE))
        await begun.wait()
        raise ConnectionError

    async with guarded(script, settings=SMALL) as guard:
        client = await guard.connect()
        await client.send(REQUEST)
        assert (await client.head()).status == 200
        begun.set()
        assert not (await client.ended()).endswith(b"0\r\n\r\n")
        assert guard.outcomes() == ["broken"]


async def test_answer_of_http_1_0_that_breaks_off_is_reset() -> None:
    begun = asyncio.Event()

    async def script(_: Upstream, arrived: Arrived) -> None:
        await arrived.send(CHUNKED + chunk(PIECE))
        await begun.wait()
        raise ConnectionError

    async with guarded(script, settings=SMALL) as guard:
        client = await guard.connect()
        await client.send(f"GET {QUERY} HTTP/1.0\r\nHost: g\r\n\r\n")
        assert (await client.head()).status == 200
        begun.set()
        with pytest.raises(ConnectionResetError):  # an orderly end would look complete
            await client.reader.read(-1)


async def test_answer_beyond_the_limit_is_refused_if_its_length_says_so() -> None:
    async def script(_: Upstream, arrived: Arrived) -> None:
        await arrived.send(HEAD + b"Content-Length: 1000001\r\n\r\n")
        await arrived.reader.read()

    async with guarded(script) as guard:
        guard.assess.template = msgspec.structs.replace(guard.assess.template, max_bytes=1_000_000)
        reply = await guard.get()
        assert (reply.status, guard.outcomes()) == (422, ["too_large"])
        assert "1000000 bytes" in error_of(reply)["error"]
        await until("the request has ended", lambda: guard.upstream.open == 0)


async def test_answer_beyond_the_limit_is_cut() -> None:
    async with guarded(_endless, settings=SMALL) as guard:
        guard.assess.template = msgspec.structs.replace(guard.assess.template, max_bytes=1_000_000)
        client = await guard.connect()
        await client.send(REQUEST)
        await client.head()
        got = await client.ended()
        assert len(got) <= 1_100_000
        assert guard.outcomes() == ["too_large"]
        await until("the request has ended", lambda: guard.upstream.open == 0)


async def _endless(_: Upstream, arrived: Arrived) -> None:
    await arrived.send(CHUNKED)
    while True:
        await arrived.send(chunk(PIECE))


async def slow_client(guard: Guarded) -> Client:
    """A client whose kernel takes only a few kilobytes ahead."""
    connected = socket.socket()
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connected.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connected, ("127.0.0.1", guard.port))
    client = Client(*await asyncio.open_connection(sock=connected, limit=4096))
    guard.clients.append(client)
    return client


@pytest.mark.slow
async def test_prometheus_is_read_at_the_pace_of_the_client() -> None:
    sent = 0

    async def script(_: Upstream, arrived: Arrived) -> None:
        nonlocal sent
        await arrived.send(CHUNKED)
        for _piece in range(500):
            await arrived.send(chunk(PIECE))
            sent += len(PIECE)
        await arrived.send(b"0\r\n\r\n")

    async with guarded(script, settings=ServingSettings(window_bytes=200_000)) as guard:
        client = await slow_client(guard)
        await client.send(REQUEST)
        await client.head()
        before = -1
        while before < sent:  # until nothing more fits
            before = sent
            await asyncio.sleep(0.05)
        assert sent < 20_000_000
        got = 0
        while piece := await client.chunk():
            got += len(piece)
        assert got == sent == 25_000_000
        assert guard.outcomes() == ["answered"]


async def test_client_that_reads_nothing_is_cut_off() -> None:
    async with guarded(_endless, settings=ServingSettings(write_stall_s=0.2, window_bytes=200_000)) as guard:
        client = await slow_client(guard)
        await client.send(REQUEST)
        await until("it is cut off", lambda: guard.outcomes() == ["slow_client"])
        await until("the request has ended", lambda: guard.upstream.open == 0)


@pytest.mark.parametrize("begun", [False, True])
async def test_request_ends_with_its_client(begun: bool) -> None:
    async def script(_: Upstream, arrived: Arrived) -> None:
        if begun:
            await arrived.send(CHUNKED + chunk(PIECE))
        await arrived.reader.read()

    async with guarded(script) as guard:
        client = await guard.connect()
        await client.send(REQUEST)
        await until("the request is sent", lambda: guard.upstream.open == 1)
        await client.close()
        await until("the request has ended", lambda: guard.upstream.open == 0)
        await until("it is counted", lambda: guard.outcomes() == ["client_gone"])
        assert len(guard.handler.flights) == 0


async def test_stop_lets_running_requests_end_and_takes_no_new_ones() -> None:
    held = asyncio.Event()

    async def script(upstream: Upstream, arrived: Arrived) -> None:
        await held.wait()
        await answer(upstream, arrived)

    async with guarded(script, settings=ServingSettings(stop_s=30.0)) as guard:
        client, idle = await guard.connect(), await guard.connect()
        await client.send(REQUEST)
        await until("the request is sent", lambda: guard.upstream.open == 1)
        stopping = asyncio.create_task(guard.server.stop())
        assert await idle.ended() == b""
        with pytest.raises(ConnectionError):
            await guard.connect()
        held.set()
        assert (await client.reply()).body == ANSWER
        await stopping


async def test_stop_cancels_requests_after_the_deadline() -> None:
    async def script(_: Upstream, arrived: Arrived) -> None:
        await arrived.reader.read()

    async with guarded(script, settings=ServingSettings(stop_s=0.1)) as guard:
        client = await guard.connect()
        await client.send(REQUEST)
        await until("the request is sent", lambda: guard.upstream.open == 1)
        await guard.server.stop()
        await until("the request has ended", lambda: guard.upstream.open == 0)


async def test_second_answer_to_a_request_is_never_that_of_the_next_one() -> None:
    whole = HEAD + b"Content-Length: 20\r\n\r\n"

    async def script(upstream: Upstream, arrived: Arrived) -> None:
        stray = whole + b'{"status":"strayed"}' if len(upstream.heads) == 1 else b""
        await arrived.send(whole + ANSWER + stray)

    async with guarded(script, settings=SMALL) as guard:
        assert [(await guard.get()).body for _ in range(2)] == [ANSWER] * 2
        assert guard.upstream.connections == 2
