"""Which requests reach Prometheus, and in which form."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import tracemalloc

import msgspec
import pytest

from muster.telemetry.guard.serving import server
from muster.telemetry.guard.serving.settings import ServingSettings
from tests.support.rawserver import Arrived, Upstream
from tests.support.waiting import TIMEOUT_S, until
from tests.unit.telemetry.guard.serving.guarded import ANSWER, QUERY, answer, guarded

FORM = "Content-Type: application/x-www-form-urlencoded"


async def test_headers_that_clients_may_not_choose_stay_in_the_guard() -> None:
    digest = hashlib.sha256(b"secret").hexdigest()
    config = f"callers: {{tokens: [{{name: one, sha256: {digest}, tenant: red}}]}}"
    async with guarded(answer, config=config) as guard:
        reply = await guard.get(
            QUERY,
            "Authorization: Bearer secret",
            "Cookie: session=secret",
            "X-Forwarded-For: 10.0.0.1",
            "X-HTTP-Method-Override: DELETE",
            "Connection: keep-alive, Accept",
            "Proxy-Authorization: Basic c2VjcmV0",
            "Origin: http://evil.example",
            "TE: trailers",
            "X-Dashboard-Uid: abc",
            "Accept: application/json",
            "Accept-Encoding: zstd, gzip",
        )
        assert (reply.status, reply.body) == (200, ANSWER)
        ((line, headers),) = guard.upstream.heads
        assert line == "GET /api/v1/query?query=up HTTP/1.1"
        assert headers == {
            "host": f"127.0.0.1:{guard.upstream.port}",
            "user-agent": "muster-guard",
            "accept": "application/json",
            "accept-encoding": "zstd, gzip",
            "x-scope-orgid": "red",
            "via": headers["via"],
        }


async def test_parameters_of_a_form_are_sent_as_a_form() -> None:
    bodies: list[bytes] = []

    async def script(upstream: Upstream, arrived: Arrived) -> None:
        bodies.append(await arrived.reader.readexactly(int(arrived.headers["content-length"])))
        await answer(upstream, arrived)

    async with guarded(script) as guard:
        client = await guard.connect()
        await client.send(f"POST {QUERY}%2B1 HTTP/1.1\r\nHost: g\r\n{FORM}\r\nContent-Length: 0\r\n\r\n")
        assert (await client.reply()).status == 200
    assert bodies == [b"query=up%2B1"]


async def test_chunked_body_is_read_and_sent_with_a_length() -> None:
    async with guarded(_echo) as guard:
        client = await guard.connect()
        await client.send(
            "POST /api/v1/read HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n"
            "3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
        )
        assert (await client.reply()).body == b"abcde"
        assert "transfer-encoding" not in guard.upstream.heads[0][1]


async def _echo(_: Upstream, arrived: Arrived) -> None:
    body = await arrived.reader.readexactly(int(arrived.headers.get("content-length", "0")))
    await arrived.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


@pytest.mark.parametrize(
    "head",
    [
        "POST /api/v1/query HTTP/1.1\r\nHost: g\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nquery=",
        "POST /api/v1/query HTTP/1.1\r\nHost: g\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST /api/v1/query HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "POST /api/v1/query HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        "POST /api/v1/query HTTP/1.1\r\nHost: g\r\nContent-Length: -1\r\n\r\n",
        "POST /api/v1/query HTTP/1.1\r\nHost: g\r\nContent-Length: +5\r\n\r\nquery",
        "GET /api/v1/query HTTP/1.1\r\nHost: g\r\nContent-Length : 5\r\n\r\nquery",
        "GET /api/v1/query HTTP/1.1\r\nHost: g\r\n X: folded\r\n\r\n",
        "GET /api/v1/query HTTP/1.1\r\nHost: g\r\nX\x00: y\r\n\r\n",
        "GET /api/v1/query HTTP/1.1\r\nHost: g\r\nContent-Length: 5\r\n\r\nquery",
        "GET /api/v1/query HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "CONNECT prometheus:9090 HTTP/1.1\r\nHost: g\r\n\r\n",
        "HEAD /api/v1/query HTTP/1.1\r\nHost: g\r\n\r\n",
        "DELETE /api/v1/query HTTP/1.1\r\nHost: g\r\n\r\n",
        "GET http://prometheus/api/v1/query HTTP/1.1\r\nHost: g\r\n\r\n",
        "get /api/v1/query HTTP/1.1\r\nHost: g\r\n\r\n",
        "nonsense\r\n\r\n",
    ],
)
async def test_ambiguous_request_never_reaches_prometheus(head: str) -> None:
    async with guarded(answer) as guard:
        client = await guard.connect()
        await client.send(head + "GET /api/v1/admin HTTP/1.1\r\nHost: smuggled\r\n\r\n" * head.startswith("POST"))
        reply = await client.head()
        assert 400 <= reply.status < 500
        assert guard.upstream.heads == []


async def test_second_request_in_a_refused_body_is_not_served() -> None:
    smuggled = f"GET {QUERY} HTTP/1.1\r\nHost: smuggled\r\n\r\n"
    async with guarded(answer) as guard:
        client = await guard.connect()
        await client.send(f"GET {QUERY} HTTP/1.1\r\nHost: g\r\nContent-Length: {len(smuggled)}\r\n\r\n{smuggled}")
        assert (await client.reply()).status == 400
        assert await client.ended() == b""
        assert guard.upstream.heads == []


async def test_body_beyond_the_limit_is_refused_before_it_is_read() -> None:
    async with guarded(answer, settings=ServingSettings(body_max_bytes=100)) as guard:
        client = await guard.connect()
        await client.send(f"POST /api/v1/query HTTP/1.1\r\nHost: g\r\n{FORM}\r\nContent-Length: 101\r\n\r\n")
        assert (await client.reply()).status == 413
        chunked = await guard.connect()
        await chunked.send(
            f"POST /api/v1/query HTTP/1.1\r\nHost: g\r\n{FORM}\r\nTransfer-Encoding: chunked\r\n\r\n"
            f"65\r\n{'a' * 101}\r\n"
        )
        assert (await chunked.reply()).status == 413
        assert guard.upstream.heads == []


async def test_body_that_does_not_come_is_given_up() -> None:
    async with guarded(answer, settings=ServingSettings(body_s=0.1)) as guard:
        client = await guard.connect()
        await client.send(f"POST /api/v1/query HTTP/1.1\r\nHost: g\r\n{FORM}\r\nContent-Length: 10\r\n\r\nquery")
        reply = await client.reply()
        assert (reply.status, msgspec.json.decode(reply.body)["error"]) == (
            408,
            "the body did not come within 0.1 s",
        )


async def test_compressed_form_is_refused_and_not_expanded() -> None:
    body = gzip.compress(b"query=" + b"a" * 1_000_000)
    async with guarded(answer) as guard:
        client = await guard.connect()
        await client.send(
            f"POST /api/v1/query HTTP/1.1\r\nHost: g\r\n{FORM}\r\nContent-Encoding: gzip\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        assert (await client.reply()).status == 415


async def test_client_that_expects_continue_gets_it() -> None:
    async with guarded(_echo) as guard:
        client = await guard.connect()
        await client.send("POST /api/v1/read HTTP/1.1\r\nHost: g\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
        assert (await client.head()).status == 100
        await client.send("abc")
        assert (await client.reply()).body == b"abc"


async def test_options_are_answered_without_prometheus() -> None:
    async with guarded(answer) as guard:
        client = await guard.connect()
        await client.send(f"OPTIONS {QUERY} HTTP/1.1\r\nHost: g\r\nOrigin: http://evil.example\r\n\r\n")
        reply = await client.head()
        assert (reply.status, reply.headers["allow"]) == (204, "GET, POST, OPTIONS")
        assert not [name for name in reply.headers if name.startswith("access-control")]
        assert guard.upstream.heads == []


async def test_connection_serves_many_requests_also_pipelined_ones() -> None:
    async with guarded(answer) as guard:
        client = await guard.connect()
        await client.send(f"GET {QUERY} HTTP/1.1\r\nHost: g\r\n\r\n" * 5)
        for _ in range(5):
            assert (await client.reply()).body == ANSWER
        assert guard.upstream.connections == 1


async def test_bytes_after_an_invalid_request_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, piece, first = asyncio.Event(), b"x" * (1 << 18), f"GET {QUERY} HTTP/1.1\r\nHost: g\r\n\r\n"
    received, receive = 0, server._Connection.data_received

    def counted(self: server._Connection, data: bytes) -> None:
        nonlocal received
        received += len(data)
        receive(self, data)

    monkeypatch.setattr(server._Connection, "data_received", counted)

    async def slowly(upstream: Upstream, arrived: Arrived) -> None:
        await go_on.wait()
        await answer(upstream, arrived)

    async with guarded(slowly) as guard:
        guard.assess.template = msgspec.structs.replace(guard.assess.template, timeout_s=TIMEOUT_S)
        client = await guard.connect()
        await client.send(first)
        await until("the request is in Prometheus", lambda: len(guard.upstream.heads) == 1)
        tracemalloc.start()
        try:
            async with asyncio.timeout(TIMEOUT_S):
                for _ in range(128):
                    await client.send(piece)
            # A server that closes a connection before it has read all of it resets it, and answers may be lost.
            await until("all is read", lambda: received == len(first) + 128 * len(piece))
            assert tracemalloc.get_traced_memory()[1] < 16 * len(piece)
        finally:
            tracemalloc.stop()
        go_on.set()
        assert (await client.reply()).body == ANSWER
        assert (await client.head()).status == 400
        assert guard.server.invalid_requests == 1


async def test_idle_connection_is_closed() -> None:
    async with guarded(answer, settings=ServingSettings(idle_s=0.1)) as guard:
        silent, slow = await guard.connect(), await guard.connect()
        await slow.send("GET /api/v1/que")
        assert await silent.ended() == b""
        assert await slow.ended() == b""


async def test_connections_beyond_the_limit_are_closed() -> None:
    async with guarded(answer, settings=ServingSettings(connections_max=2)) as guard:
        first, _ = await guard.connect(), await guard.connect()
        await until("two are open", lambda: guard.server.connections == 2)
        third = await guard.connect()
        assert await third.ended() == b""
        assert (guard.server.connections, guard.server.refused_connections) == (2, 1)
        assert (await first.get(QUERY)).status == 200


async def test_bodies_of_all_requests_are_bounded_together() -> None:
    async with guarded(answer, settings=ServingSettings(bodies_max_bytes=150, body_max_bytes=100)) as guard:
        first = await guard.connect()
        head = f"POST /api/v1/query HTTP/1.1\r\nHost: g\r\n{FORM}\r\nContent-Length: 100\r\n\r\n"
        await first.send(head + "a" * 90)
        await until("the first is held", lambda: guard.handler._bodies.bytes == 90)
        second = await guard.connect()
        await second.send(head + "b" * 100)
        reply = await second.reply()
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        await first.send("a" * 10)
        assert (await first.reply()).status == 200
        assert guard.handler._bodies.bytes == 0


async def test_guard_whose_upstream_is_itself_finds_the_loop() -> None:
    async with guarded(answer) as outer:

        async def back(_: Upstream, arrived: Arrived) -> None:
            reply = await outer.get(QUERY, f"Via: {arrived.headers['via']}")
            await arrived.send(b"HTTP/1.1 %d Again\r\nContent-Length: 0\r\n\r\n" % reply.status)

        outer.upstream.script = back
        assert (await outer.get()).status == 508
        assert len(outer.upstream.heads) == 1
