"""Requests that are passed on to the API server."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import msgspec
import pytest

from muster.kube.connection.config import ClusterConfig
from muster.kube.errors import ConfigError
from muster.readcache.serving.forward import UpstreamForwarder
from muster.readcache.serving.settings import ServingSettings
from tests.support.rawserver import Arrived, Upstream
from tests.support.waiting import until
from tests.unit.readcache.serving.stand_ins import serving, tls_contexts
from tests.unit.readcache.serving.upstreams import upstream

OK = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


async def answer_ok(_: Upstream, arrived: Arrived) -> None:
    await arrived.send(OK)


async def test_request_arrives_with_the_callers_credentials_only() -> None:
    async with upstream(answer_ok) as (api, forwarder), serving(forwarder=forwarder) as served:
        one = await served.connect()
        reply = await one.get(
            "/api/v1/pods?x=%2F+1",
            "Authorization: Bearer callers",
            "Impersonate-User: ann",
            "X-Remote-User: admin",
            "x-remote-extra-a: b",
            "X-Forwarded-For: 1.2.3.4",
            "Connection: keep-alive, X-Hop",
            "X-Hop: 1",
            "Proxy-Authorization: Basic x",
            "Accept: application/json",
        )
        assert (reply.status, reply.body) == (200, b"ok")
        line, headers = api.heads[0]
        assert line == "GET /api/v1/pods?x=%2F+1 HTTP/1.1"
        assert headers == {
            "host": f"127.0.0.1:{api.port}",
            "authorization": "Bearer callers",
            "impersonate-user": "ann",
            "accept": "application/json",
            "x-forwarded-for": "127.0.0.1",
        }
        await one.get("/version")
        assert "authorization" not in api.heads[1][1]
        assert api.connections == 1
        await one.close()


async def test_connection_header_does_not_remove_credentials() -> None:
    async with upstream(answer_ok) as (api, forwarder), serving(forwarder=forwarder) as served:
        one = await served.connect()
        await one.get(
            "/api/v1/pods",
            "Authorization: Bearer proxys",
            "Impersonate-User: ann",
            "Impersonate-Extra-Scope: view",
            "Connection: Authorization, impersonate-user, Impersonate-Extra-Scope, X-Hop",
            "X-Hop: 1",
        )
        headers = api.heads[0][1]
        assert headers["authorization"] == "Bearer proxys"
        assert headers["impersonate-user"] == "ann"
        assert headers["impersonate-extra-scope"] == "view"
        assert "x-hop" not in headers
        await one.close()


async def test_bodies_are_streamed_both_ways_with_trailers() -> None:
    async def echo(_: Upstream, arrived: Arrived) -> None:
        await arrived.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n")
        size = int(await arrived.reader.readuntil(b"\r\n"), 16)
        while size:
            data = await arrived.reader.readexactly(size + 2)
            await arrived.send(b"%x\r\n%b" % (size, data))
            size = int(await arrived.reader.readuntil(b"\r\n"), 16)
        await arrived.reader.readuntil(b"\r\n")
        await arrived.send("0\r\nX-Sum: 7\r\n\r\n")

    async with upstream(echo) as (_, forwarder), serving(forwarder=forwarder) as served:
        one = await served.connect()
        await one.send("POST /x HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        assert (await one.head()).status == 200
        assert await one.chunk() == b"first"  # before the request ends
        await one.send("6\r\nsecond\r\n0\r\n\r\n")
        assert await one.chunk() == b"second"
        assert await one.reader.readuntil(b"X-Sum: 7\r\n\r\n") == b"0\r\nX-Sum: 7\r\n\r\n"
        await one.close()


@pytest.mark.slow
async def test_slow_upstream_slows_the_upload_down() -> None:
    begin = asyncio.Event()
    total = 24 << 20

    async def read_late(_: Upstream, arrived: Arrived) -> None:
        await begin.wait()
        size = len(await arrived.reader.readexactly(total))
        await arrived.send(f"HTTP/1.1 200 OK\r\nContent-Length: {len(str(size))}\r\n\r\n{size}")

    async with upstream(read_late) as (_, forwarder), serving(forwarder=forwarder) as served:
        one = await served.connect()
        await one.send(f"PUT /x HTTP/1.1\r\nHost: c\r\nContent-Length: {total}\r\n\r\n")
        sending = asyncio.create_task(one.send(bytes(total)))
        done, _ = await asyncio.wait([sending], timeout=0.3)
        assert not done  # it is held back in the kernels, not in the cache
        assert served.server.waiting_bytes < 1 << 20
        begin.set()
        assert (await one.reply()).body == str(total).encode()
        await sending
        await one.close()


async def test_client_that_leaves_cancels_the_request_upstream() -> None:
    async def never(_: Upstream, arrived: Arrived) -> None:
        await arrived.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await arrived.reader.read(1)
        raise ConnectionError

    async with upstream(never) as (api, forwarder), serving(forwarder=forwarder) as served:
        one = await served.connect()
        await one.send("GET /logs?follow=true HTTP/1.1\r\nHost: c\r\n\r\n")
        await one.head()
        await one.close()
        await until("the upstream sees it", lambda: api.open == 0)


async def test_upgrade_becomes_a_tunnel() -> None:
    async def shout(_: Upstream, arrived: Arrived) -> None:
        await arrived.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\nhello")
        while data := await arrived.reader.read(100):
            await arrived.send(data.upper())
            if data == b"bye":
                raise ConnectionError

    async with upstream(shout) as (api, forwarder), serving(forwarder=forwarder) as served:
        one = await served.connect()
        await one.send(
            "POST /exec HTTP/1.1\r\nHost: c\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\nab"
        )
        reply = await one.head()
        assert (reply.status, reply.headers["upgrade"], reply.headers["connection"]) == (101, "SPDY/3.1", "Upgrade")
        assert api.heads[0][1]["upgrade"] == "SPDY/3.1"
        assert await one.reader.readexactly(7) == b"helloAB"
        await one.send("bye")
        assert await one.ended() == b"BYE"
        await one.close()


async def test_refused_upgrade_is_an_ordinary_response() -> None:
    async def refuse(_: Upstream, arrived: Arrived) -> None:
        await arrived.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")

    async with upstream(refuse) as (_, forwarder), serving(forwarder=forwarder) as served:
        one = await served.connect()
        reply = await one.get("/exec", "Connection: Upgrade", "Upgrade: websocket")
        assert (reply.status, reply.body) == (403, b"no")
        assert await one.ended() == b""
        await one.close()


async def test_offer_of_http2_is_not_taken() -> None:
    async with upstream(answer_ok) as (api, forwarder), serving(forwarder=forwarder) as served:
        one = await served.connect()
        for _ in range(2):
            reply = await one.get("/x", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAM")
            assert reply.body == b"ok"
        assert "upgrade" not in api.heads[0][1]
        assert "http2-settings" not in api.heads[0][1]
        await one.close()


async def test_informational_responses_are_passed_on() -> None:
    async def go_on(_: Upstream, arrived: Arrived) -> None:
        assert arrived.headers["expect"] == "100-continue"
        await arrived.send("HTTP/1.1 100 Continue\r\n\r\n")
        await arrived.send("HTTP/1.1 103 Early Hints\r\nX-A: b\r\n\r\n")
        body = await arrived.reader.readexactly(4)
        await arrived.send(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n" + body)

    async with upstream(go_on) as (_, forwarder), serving(forwarder=forwarder) as served:
        one = await served.connect()
        await one.send("PUT /x HTTP/1.1\r\nHost: c\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
        assert (await one.head()).status == 100
        hints = await one.head()
        assert (hints.status, hints.headers["x-a"]) == (103, "b")
        await one.send("data")
        assert (await one.reply()).body == b"data"
        await one.close()


async def test_early_refusal_of_an_upload_closes_the_connection() -> None:
    async def refuse(_: Upstream, arrived: Arrived) -> None:
        await arrived.send("HTTP/1.1 413 Request Entity Too Large\r\nContent-Length: 2\r\n\r\nno")

    async with upstream(refuse) as (_, forwarder), serving(forwarder=forwarder) as served:
        one = await served.connect()
        await one.send("PUT /x HTTP/1.1\r\nHost: c\r\nExpect: 100-continue\r\nContent-Length: 400000\r\n\r\n")
        assert (await one.reply()).status == 413
        assert await one.ended() == b""
        await one.close()


@pytest.mark.parametrize("size_bytes", [500_000, 700_000, 900_000])
async def test_connection_on_which_a_body_was_not_sent_whole_is_not_used_again(size_bytes: int) -> None:
    """The cache has all of a body, the server answers before it took all. It would take the next request for the rest.

    How much the kernel holds is not known, so several sizes are tried.
    """
    sent, next_came = asyncio.Event(), asyncio.Event()
    bodies: list[bytes] = []

    async def answer_before_reading(_: Upstream, arrived: Arrived) -> None:
        if arrived.line.startswith("PUT"):
            await sent.wait()
            await arrived.send(OK)
            await next_came.wait()
            bodies.append(await arrived.reader.read(size_bytes))
            while len(bodies[-1]) < size_bytes and (more := await arrived.reader.read(size_bytes - len(bodies[-1]))):
                bodies[-1] += more
        else:
            await arrived.send(OK)

    async with (
        upstream(answer_before_reading, ServingSettings(full_bytes=1024)) as (_, forwarder),
        serving(forwarder=forwarder) as served,
    ):
        one, two = await served.connect(), await served.connect()
        await one.send(f"PUT /x HTTP/1.1\r\nHost: c\r\nContent-Length: {size_bytes}\r\n\r\n")
        sending = asyncio.create_task(one.send(bytes(size_bytes)))
        await asyncio.wait([sending], timeout=0.3)
        sent.set()
        assert (await one.reply()).status == 200
        asking = asyncio.create_task(two.get("/next"))
        await asyncio.wait([asking], timeout=0.3)
        next_came.set()
        async with asyncio.timeout(20):
            assert (await asking).body == b"ok"
        await until("the server saw the end of the body", lambda: bool(bodies))
        assert b"GET" not in bodies[0]
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await one.close()
        await two.close()


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("POST", 502)])
async def test_only_idempotent_request_is_repeated_after_a_stale_connection(method: str, status: int) -> None:
    async def once(_: Upstream, arrived: Arrived) -> None:
        if arrived.number > 1:
            raise ConnectionError
        await arrived.send(OK)

    async with upstream(once) as (api, forwarder), serving(forwarder=forwarder) as served:
        one = await served.connect()
        await one.get("/first")
        await one.send(f"{method} /second HTTP/1.1\r\nHost: c\r\n\r\n")
        reply = await one.reply()
        assert reply.status == status
        assert api.connections == (2 if method == "GET" else 1)
        await one.close()


async def test_fresh_connection_that_breaks_is_not_tried_again() -> None:
    async def never(_: Upstream, __: Arrived) -> None:
        raise ConnectionError

    async with upstream(never) as (api, forwarder), serving(forwarder=forwarder) as served:
        one = await served.connect()
        reply = await one.get("/x")
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert api.connections == 1
        await one.close()


async def test_upstream_away_is_a_status_with_retry_after() -> None:
    async with upstream(answer_ok) as (api, forwarder), serving(forwarder=forwarder) as served:
        api.stop()
        one = await served.connect()
        reply = await one.get("/x")
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        status = msgspec.json.decode(reply.body)
        assert status["reason"] == "ServiceUnavailable"
        assert status["details"]["retryAfterSeconds"] == 1
        await api.start()
        assert (await one.get("/x")).body == b"ok"
        await one.close()


async def test_response_that_breaks_off_is_not_ended_as_if_it_were_whole() -> None:
    async def half(_: Upstream, arrived: Arrived) -> None:
        await arrived.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
        raise ConnectionError

    async with upstream(half) as (_, forwarder), serving(forwarder=forwarder) as served:
        one = await served.connect()
        await one.send("GET /x HTTP/1.1\r\nHost: c\r\n\r\n")
        await one.head()
        assert b"0\r\n" not in await one.ended()
        await one.close()


async def test_head_request_has_a_length_and_no_body() -> None:
    async def head(_: Upstream, arrived: Arrived) -> None:
        await arrived.send("HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n")

    async with upstream(head) as (_, forwarder), serving(forwarder=forwarder) as served:
        one = await served.connect()
        for _ in range(2):
            await one.send("HEAD /x HTTP/1.1\r\nHost: c\r\n\r\n")
            assert (await one.head()).headers["content-length"] == "2000"
        await one.close()


async def test_client_of_http10_gets_the_body_unframed() -> None:
    async def chunked(_: Upstream, arrived: Arrived) -> None:
        await arrived.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")

    async with upstream(chunked) as (_, forwarder), serving(forwarder=forwarder) as served:
        one = await served.connect()
        await one.send("GET /x HTTP/1.0\r\n\r\n")
        reply = await one.head()
        assert "transfer-encoding" not in reply.headers
        assert await one.ended() == b"abc"
        await one.close()


async def test_client_certificate_alone_is_refused_with_the_reason(tmp_path: Path) -> None:
    server, client, authority = tls_contexts(tmp_path)
    server.load_verify_locations(cadata=authority.certificate.decode())
    server.verify_mode = ssl.CERT_OPTIONAL
    authority.issue_client("ann", ["team"]).write(tmp_path / "ann.crt", tmp_path / "ann.key")
    async with upstream(answer_ok) as (api, forwarder), serving(context=server, forwarder=forwarder) as served:
        anonymous = await served.connect(client)
        assert (await anonymous.get("/x")).body == b"ok"
        await anonymous.close()
        client.load_cert_chain(tmp_path / "ann.crt", tmp_path / "ann.key")
        one = await served.connect(client)
        reply = await one.get("/x")
        assert reply.status == 403
        assert "cannot pass on a client certificate" in msgspec.json.decode(reply.body)["message"]
        assert len(api.heads) == 1
        assert (await one.get("/x", "Authorization: Bearer t")).body == b"ok"
        await one.close()


async def test_proxy_to_the_api_server_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="without proxy-url"):
        UpstreamForwarder(ClusterConfig("https://x", proxy_url="http://proxy"))
