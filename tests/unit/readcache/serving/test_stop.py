"""How the server stops."""

from __future__ import annotations

import asyncio
import random

import pytest

from muster.readcache.request import Answer
from muster.readcache.serving.settings import ServingSettings
from tests.support.rawclient import Client
from tests.support.waiting import until
from tests.unit.readcache.serving.stand_ins import JSON, FakeWatch, serving


class Backwards(random.Random):
    """Gives the last watch the shortest delay."""

    delay_s = 0.5

    def uniform(self, a: float, b: float) -> float:
        assert (a, b) == (0, 1.0)
        self.delay_s -= 0.1
        return self.delay_s


async def test_stop_ends_watches_at_random_times_and_closes_their_connections() -> None:
    watch = FakeWatch()
    settings = ServingSettings(grace_s=20, watches_end_s=1.0)
    async with serving(settings=settings, rng=Backwards()) as served:
        served.reads.answers = {"/cached/watch": watch}
        clients = [await served.connect() for _ in range(4)]
        for one in clients:
            await one.send("GET /cached/watch HTTP/1.1\r\nHost: c\r\n\r\n")
            await one.head()
        await until("all are pushed", lambda: len(watch.subscriptions) == 4)

        async def end(client: Client) -> None:
            assert await client.ended() == b"0\r\n\r\n"
            await client.close()

        await asyncio.gather(served.server.stop(), *map(end, clients))
        # As the server ended them: how the clients learn of it has no order.
        assert list(map(id, watch.ended)) == list(map(id, reversed(watch.subscriptions)))


async def test_running_request_may_end_and_idle_connections_close() -> None:
    go_on = asyncio.Event()

    async def slow(_: object) -> Answer:
        await go_on.wait()
        return Answer(200, JSON, (b"late",))

    async with serving(settings=ServingSettings(grace_s=20)) as served:
        served.reads.answers = {"/cached/slow": slow, "/cached/x": Answer(200, JSON, (b"{}",))}
        busy, idle = await served.connect(), await served.connect()
        await idle.get("/cached/x")
        await busy.send("GET /cached/slow HTTP/1.1\r\nHost: c\r\n\r\n")
        await until("the request is served", lambda: served.reads.requests[-1].path == "/cached/slow")
        stopping = asyncio.create_task(served.server.stop())
        assert await idle.ended() == b""
        await idle.close()
        with pytest.raises(ConnectionRefusedError):
            await served.connect()
        go_on.set()
        reply = await busy.reply()
        assert (reply.body, reply.headers["connection"]) == (b"late", "close")
        await busy.close()
        await stopping


async def test_request_that_does_not_end_is_cut_off_after_the_grace_period() -> None:
    cancelled = asyncio.Event()

    async def never(_: object) -> Answer:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with serving(settings=ServingSettings(grace_s=0.1)) as served:
        served.reads.answers = {"/cached/never": never}
        one = await served.connect()
        await one.send("GET /cached/never HTTP/1.1\r\nHost: c\r\n\r\n")
        await until("the request is served", lambda: served.reads.requests)
        await served.server.stop()
        assert await one.ended() == b""
        await cancelled.wait()
        await one.close()
