"""The HTTP server: requests, answers, limits."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path

import msgspec
import pytest

from muster.readcache.request import Answer, Forward, Refusal
from muster.readcache.serving.settings import ServingSettings
from tests.support.waiting import until
from tests.unit.readcache.serving.stand_ins import JSON, FakeWatch, serving, tls_contexts

PLAIN = Answer(200, JSON, (b"{}",))


async def test_answers_requests_of_one_connection_in_order(tmp_path: Path) -> None:
    server, client, _ = tls_contexts(tmp_path)
    async with serving(context=server, client_context=client) as served:
        slow = asyncio.Event()

        async def wait(_: object) -> Answer:
            await slow.wait()
            return Answer(200, JSON, (b"slow",))

        served.reads.answers = {"/cached/slow": wait, "/cached/fast": PLAIN}
        one = await served.connect()
        await one.send(
            "GET /cached/slow HTTP/1.1\r\nHost: c\r\n\r\nGET /cached/fast?a=%2F&a=2 HTTP/1.1\r\nHost: c\r\n\r\n"
        )
        slow.set()
        assert (await one.reply()).body == b"slow"
        assert (await one.reply()).body == b"{}"
        assert served.reads.requests[1].query == {"a": "/"}
        await one.close()


async def test_watch_is_pushed() -> None:
    async with serving() as served:
        watch = FakeWatch((b"first\n",))
        served.reads.answers = {"/cached/watch": watch}
        one = await served.connect()
        await one.send("GET /cached/watch HTTP/1.1\r\nHost: c\r\n\r\n")
        assert (await one.head()).status == 200
        assert await one.chunk() == b"first\n"
        await until("the watch is pushed", lambda: watch.subscriptions)
        watch.push(b"a\n", b"b\n")
        assert await one.chunk() == b"a\nb\n"
        assert watch.subscriptions[0].calls == []
        await one.close()


async def test_watch_ends_at_its_deadline() -> None:
    async with serving() as served:
        watch = FakeWatch((b"first\n",), deadline_s=0.05)
        served.reads.answers = {"/cached/watch": watch, "/cached/next": PLAIN}
        one = await served.connect()
        await one.send("GET /cached/watch HTTP/1.1\r\nHost: c\r\n\r\n")
        assert (await one.head()).status == 200
        assert await one.chunk() == b"first\n"
        assert await one.chunk() == b""
        assert watch.subscriptions[0].calls == ["close"]
        assert (await one.get("/cached/next")).body == b"{}"
        await one.close()


async def test_large_answer_is_compressed_for_those_who_accept_it() -> None:
    pieces = tuple(str(number).encode() * 1000 for number in range(400))
    async with serving() as served:
        served.reads.answers = {"/cached/list": Answer(200, JSON, pieces)}
        one = await served.connect()
        plain = await one.get("/cached/list")
        assert plain.body == b"".join(pieces)
        packed = await one.get("/cached/list", "Accept-Encoding: gzip, deflate")
        assert packed.headers["content-encoding"] == "gzip"
        assert zlib.decompress(packed.body, 31) == plain.body
        await one.close()


async def test_refusal_is_a_status() -> None:
    async with serving() as served:
        served.gate.refusal = Refusal(429, "TooManyRequests", "slow down", retry_after_s=7)
        one = await served.connect()
        reply = await one.get("/cached/x")
        assert (reply.status, reply.headers["retry-after"]) == (429, "7")
        assert msgspec.json.decode(reply.body)["message"] == "slow down"
        await one.close()


async def test_uncached_request_is_forwarded() -> None:
    async with serving() as served:
        served.reads.answers = {"/cached/x": Forward("because")}
        one = await served.connect()
        assert (await one.get("/other")).body == b"not cached: 0"
        assert (await one.get("/cached/x")).body == b"because: 0"
        await one.close()


@pytest.mark.slow
@pytest.mark.parametrize("endless", ["0\r\n" + "X: y\r\n" * 40_000, "0\r\nX: " + "y" * 200_000, "1;" + "y" * 200_000])
async def test_body_whose_framing_does_not_end_is_cut_off(endless: str) -> None:
    async with serving() as served:
        served.reads.answers["/cached/x"] = Answer(200, JSON, (b"early",))
        one = await served.connect()
        await one.send("GET /cached/x HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nb\r\n")
        assert (await one.reply()).body == b"early"
        one.writer.write(endless.encode())
        await one.ended()
        await until("the connection is gone", lambda: not served.server.connections)
        await one.close()


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ("NONSENSE\r\n\r\n", 400),
        ("GET /cached/x HTTP/1.1\r\n\r\n", 400),
        ("GET /%zz HTTP/1.1\r\nHost: c\r\n\r\n", 400),
        (f"GET /cached/x HTTP/1.1\r\nHost: c\r\nX: {'y' * 70000}\r\n\r\n", 431),
        (f"GET /{'y' * 70000} HTTP/1.1\r\nHost: c\r\n", 431),
        ("POST /x HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        ("POST /x HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 400),
        ("POST /x HTTP/1.1\r\nHost: c\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400),
        ("GET /cached/x HTTP/1.1\r\nHost: c\r\nHost: d\r\n\r\n", 400),
        ("GET /cached/x HTTP/1.1\r\nHost: c\r\nX: a\x00b\r\n\r\n", 400),
        ("GET /cached/x HTTP/1.1\nHost: c\n\n", 400),
        ("GET cached HTTP/1.1\r\nHost: c\r\n\r\n", 400),
    ],
)
async def test_invalid_request_is_refused_and_its_connection_closed(request_: str, status: int) -> None:
    async with serving() as served:
        one = await served.connect()
        await one.send(request_)
        reply = await one.reply()
        assert reply.status == status
        assert msgspec.json.decode(reply.body)["code"] == status
        assert await one.ended() == b""
        await one.close()


async def test_slow_head_and_slow_handshake_time_out(tmp_path: Path) -> None:
    context, _, _ = tls_contexts(tmp_path)
    settings = ServingSettings(head_s=0.05, handshake_s=0.05)
    async with serving(settings=settings) as served:
        one = await served.connect()
        await one.send("GET /cached/x HT")
        assert await one.ended() == b""
        await one.close()
    async with serving(settings=settings, context=context) as served:
        one = await served.connect()
        assert await one.ended() == b""
        await one.close()


async def test_broken_body_cuts_the_connection_off() -> None:
    async with serving() as served:
        one = await served.connect()
        await one.send("POST /x HTTP/1.1\r\nHost: c\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
        assert await one.ended() == b""
        assert served.server.connections == 0
        await one.close()


async def test_client_of_http10_can_watch_and_keep_its_connection() -> None:
    watch = FakeWatch((b"first\n",))
    async with serving() as served:
        served.reads.answers = {"/cached/x": PLAIN, "/cached/watch": watch}
        one = await served.connect()
        await one.send("GET /cached/x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        reply = await one.reply()
        assert (reply.body, reply.headers["connection"]) == (b"{}", "keep-alive")
        await one.send("GET /cached/watch HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
        assert "transfer-encoding" not in (await one.head()).headers
        await until("the watch is pushed", lambda: watch.subscriptions)
        watch.push(b"second\n")
        watch.subscriptions[0].on_closed("reset")
        assert await one.ended() == b"first\nsecond\n"
        await one.close()


async def test_body_of_a_cached_read_is_skipped() -> None:
    async with serving() as served:
        served.reads.answers = {"/cached/x": PLAIN}
        one = await served.connect()
        for _ in range(2):
            await one.send("GET /cached/x HTTP/1.1\r\nHost: c\r\nContent-Length: 5\r\n\r\n")
            assert (await one.reply()).body == b"{}"
            await one.send("extra")
        await one.close()


@pytest.mark.slow
async def test_too_many_pipelined_requests_wait_in_the_kernel() -> None:
    go_on = asyncio.Event()

    async def wait(_: object) -> Answer:
        await go_on.wait()
        return PLAIN

    async with serving() as served:
        served.reads.answers = {"/cached/x": wait}
        one = await served.connect()
        request = b"GET /cached/x HTTP/1.1\r\nHost: c\r\nX: %b\r\n\r\n" % (b"y" * 2000)
        sending = asyncio.create_task(one.send(request * 5000))
        done, _ = await asyncio.wait([sending], timeout=0.3)
        assert not done
        go_on.set()
        for _ in range(5000):
            assert (await one.reply()).status == 200
        await sending
        await one.close()


async def test_failed_answer_is_an_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(_: object) -> Answer:
        raise LookupError("a fault")

    async with serving() as served:
        served.reads.answers = {"/cached/x": fail}
        one = await served.connect()
        reply = await one.get("/cached/x")
        assert (reply.status, msgspec.json.decode(reply.body)["reason"]) == (500, "InternalError")
        assert "a fault" not in reply.body.decode()
        assert served.server.counters.errors == 1
        assert "a fault" in caplog.text
        await one.close()


@pytest.mark.slow
async def test_clients_that_come_and_go_leave_nothing_openyurt_2679(tmp_path: Path) -> None:
    context, client, _ = tls_contexts(tmp_path)
    watch = FakeWatch()
    async with serving(context=context, client_context=client) as served:
        served.reads.answers = {"/cached/watch": watch}
        tasks = len(asyncio.all_tasks())
        for number in range(60):
            one = await served.connect()
            await one.send("GET /cached/watch HTTP/1.1\r\nHost: c\r\n\r\n")
            await one.head()
            if number % 2:
                one.writer.transport.abort()
            else:
                await one.close()
        await until("all are gone", lambda: served.server.connections == 0)
        assert served.server.watches == 0
        assert all(one.calls == ["close"] for one in watch.subscriptions)
        await until("their tasks have ended", lambda: len(asyncio.all_tasks()) <= tasks)
