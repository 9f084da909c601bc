"""Clients that do not keep up, and how much memory they may cost."""

from __future__ import annotations

import asyncio
import socket
import struct
from pathlib import Path

import pytest

from muster.readcache.request import Answer
from muster.readcache.serving.settings import ServingSettings
from tests.support.rawclient import Client
from tests.support.rawserver import Arrived, Upstream
from tests.support.waiting import until
from tests.unit.readcache.serving.stand_ins import JSON, FakeWatch, Served, serving, tls_contexts
from tests.unit.readcache.serving.upstreams import upstream

WATCH = "GET /cached/watch HTTP/1.1\r\nHost: c\r\n\r\n"


async def small_window(served: Served) -> Client:
    """A client whose kernel takes only a few kilobytes ahead."""
    connected = socket.socket()
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connected.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connected, ("127.0.0.1", served.port))
    context = served.client_context
    name = "127.0.0.1" if context is not None else None
    reader, writer = await asyncio.open_connection(sock=connected, ssl=context, server_hostname=name, limit=4096)
    return Client(reader, writer)


async def started(client: Client, watch: FakeWatch, count: int = 1) -> None:
    await client.send(WATCH)
    await client.head()
    await until("the watch is pushed", lambda: len(watch.subscriptions) == count)


async def test_slow_watch_is_paused_and_resumed_when_it_has_caught_up(tmp_path: Path) -> None:
    server, client, _ = tls_contexts(tmp_path)
    watch = FakeWatch()
    async with serving(context=server, client_context=client) as served:
        served.reads.answers = {"/cached/watch": watch}
        one = await small_window(served)
        await started(one, watch)
        calls = watch.subscriptions[0].calls
        sent = 0
        while not calls:
            watch.push(b"x" * 50_000)
            sent += 50_000
        assert calls == ["pause"]
        assert 0 < served.server.waiting_bytes <= 64 << 10 << 1
        got = 0
        while got < sent:
            got += len(await one.chunk())
        await until("the watch resumes", lambda: calls == ["pause", "resume"])
        assert served.server.waiting_bytes == 0
        watch.push(b"more")
        assert await one.chunk() == b"more"
        await one.close()


async def test_slow_watch_does_not_delay_another_and_is_dropped() -> None:
    watch = FakeWatch()
    settings = ServingSettings(stall_s=0.3, grace_s=0.1, watches_end_s=0.05)
    async with serving(settings=settings) as served:
        served.reads.answers = {"/cached/watch": watch}
        slow, fast = await small_window(served), await served.connect()
        await started(slow, watch)
        await started(fast, watch, 2)
        while not watch.subscriptions[0].calls:  # without a pause, in which it could be dropped before it was paused
            watch.subscriptions[0].on_frames([b"x" * 30_000])
        for number in range(100):
            watch.subscriptions[1].on_frames([b"%06d" % number * 5000])
            assert len(await fast.chunk()) == 30_000
        await until("the slow client is dropped", lambda: served.server.counters.dropped == {"stalled": 1})
        assert watch.subscriptions[0].calls == ["pause", "close"]
        assert watch.subscriptions[1].calls == []
        assert served.server.waiting_bytes == 0
        watch.push(b"later")
        assert await fast.chunk() == b"later"
        await slow.close()
        await fast.close()


@pytest.mark.slow
async def test_slow_reader_of_a_large_list_does_not_fill_the_memory() -> None:
    made = 0

    def pieces() -> object:
        nonlocal made
        for _ in range(300):
            made += 50_000
            yield b"y" * 50_000

    async with serving() as served:
        served.reads.answers = {"/cached/list": Answer(200, JSON, pieces())}  # type: ignore[arg-type]
        one = await small_window(served)
        await one.send("GET /cached/list HTTP/1.1\r\nHost: c\r\n\r\n")
        await one.head()
        await until("the client is behind", lambda: served.server.waiting_bytes > 0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert served.server.waiting_bytes < 1 << 20
        assert made < 4 << 20
        total = 0
        while data := await one.chunk():
            total += len(data)
        assert total == 300 * 50_000
        await one.close()


async def test_client_with_the_most_waiting_is_dropped_when_memory_is_full() -> None:
    watch = FakeWatch()
    settings = ServingSettings(waiting_bytes_max=3_000_000, full_bytes=100_000_000, grace_s=0.1, watches_end_s=0.05)
    async with serving(settings=settings) as served:
        served.reads.answers = {"/cached/watch": watch}
        first, second = await small_window(served), await small_window(served)
        await started(first, watch)
        await started(second, watch, 2)
        while not served.server.counters.dropped:
            watch.subscriptions[0].on_frames([b"a" * 100_000])
            watch.subscriptions[1].on_frames([b"b" * 10_000])
        assert served.server.counters.dropped == {"memory": 1}
        assert [one.calls for one in watch.subscriptions] == [["close"], []]
        await first.close()
        await second.close()


async def test_client_that_resets_ends_its_watch(tmp_path: Path) -> None:
    server, client, _ = tls_contexts(tmp_path)
    watch = FakeWatch()
    async with serving(context=server, client_context=client) as served:
        served.reads.answers = {"/cached/watch": watch}
        one = await served.connect()
        await started(one, watch)
        one.writer.transport.abort()
        await until("the watch ends", lambda: watch.subscriptions[0].calls == ["close"])
        assert served.server.watches == 0
        assert served.server.connections == 0


async def test_connections_are_limited_and_idle_ones_make_room() -> None:
    settings = ServingSettings(connections_max=2, grace_s=0.1)
    plain = Answer(200, JSON, (b"{}",))
    watch = FakeWatch()
    async with serving(settings=settings) as served:
        served.reads.answers = {"/cached/x": plain, "/cached/watch": watch}
        busy, idle = await served.connect(), await served.connect()
        await started(busy, watch)
        await idle.get("/cached/x")
        third = await served.connect()
        assert (await third.get("/cached/x")).body == b"{}"
        assert await idle.ended() == b""
        await third.send(WATCH)
        await third.head()
        fourth = await served.connect()
        assert await fourth.ended() == b""
        assert served.server.counters.refused_connections == 1
        for one in (busy, idle, third, fourth):
            await one.close()


async def test_client_that_leaves_while_its_watch_begins_leaves_nothing() -> None:
    watch = FakeWatch()
    async with serving() as served:
        client = socket.create_connection(("127.0.0.1", served.port))

        async def leave(_: object) -> FakeWatch:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()  # a reset, which the server notices when it writes
            return watch

        served.reads.answers = {"/cached/watch": leave}
        client.sendall(WATCH.encode())
        await until("it is gone", lambda: served.reads.requests and served.server.connections == 0)
        assert served.server.watches == 0
        assert all(one.calls == ["close"] for one in watch.subscriptions)


@pytest.mark.parametrize("full_bytes", [64 << 10, 4 << 20], ids=["in_the_server", "in_the_cache"])
async def test_slow_streams_of_forwarded_requests_are_not_dropped(full_bytes: int) -> None:
    """A log may wait in a pager, and the input of an exec for its program, as with the API server.

    So may the end of a log that the cache has got already.
    """
    logged, total = 1 << 20, 8 << 20
    go_on = asyncio.Event()

    async def both_slow(_: Upstream, arrived: Arrived) -> None:
        size = logged if arrived.line.startswith("GET") else total
        await arrived.send(f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n")
        if size == logged:
            await arrived.send(b"l" * logged)
        else:
            await go_on.wait()
            await arrived.send(await arrived.reader.readexactly(total))

    watch = FakeWatch()
    settings = ServingSettings(stall_s=0.2, grace_s=0.1, watches_end_s=0.05, full_bytes=full_bytes)
    async with (
        upstream(both_slow, settings) as (_, forwarder),
        serving(forwarder=forwarder, settings=settings) as served,
    ):
        served.reads.answers = {"/cached/watch": watch}
        log, execute, slow = await small_window(served), await served.connect(), await small_window(served)
        await log.send("GET /log HTTP/1.1\r\nHost: c\r\n\r\n")
        await execute.send(f"POST /exec HTTP/1.1\r\nHost: c\r\nContent-Length: {total}\r\n\r\n")
        sending = asyncio.create_task(execute.send(b"e" * total))
        assert (await log.head()).status == 200
        assert (await execute.head()).status == 200
        await started(slow, watch)
        while not watch.subscriptions[0].calls:
            watch.push(b"x" * 50_000)
        await until("the slow watch is dropped", lambda: served.server.counters.dropped == {"stalled": 1})
        go_on.set()
        assert await log.reader.readexactly(logged) == b"l" * logged
        assert await execute.reader.readexactly(total) == b"e" * total
        await sending
        for one in (log, execute, slow):
            await one.close()
