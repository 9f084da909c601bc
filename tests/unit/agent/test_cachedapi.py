"""The agent's requests through a read cache that dies, refuses, hangs and comes back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from muster.agent.api import AgentApi
from muster.agent.cachedapi import CachedApi
from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.fallback import Fallback, FallbackSettings
from muster.kube.errors import Conflict, Unavailable
from tests.support.waiting import until
from tests.unit.agent.answers import OK, Answer, Server, always, serving, status

QUICK = FallbackSettings(jitter_s=0.05, requests_per_s=100, burst=10, retry_s=0.1)


@dataclass
class Both:
    api: CachedApi
    cache: Server
    server: Server

    async def patch(self) -> bytes:
        return await self.api.request("PATCH", "/x", b"[]", "application/json-patch+json")


def agent_api(url: str, timeout_s: float = 60.0) -> AgentApi:
    return AgentApi(ClusterConfig(server=url), user_agent="muster-agent/test", timeout_s=timeout_s)


@asynccontextmanager
async def both(cache_answer: Answer, timeout_s: float = 60.0) -> AsyncIterator[Both]:
    async with serving(cache_answer) as cache, serving(always(OK)) as server:
        choice = Fallback(cache.url, random.Random(1), QUICK)
        made = CachedApi(agent_api(cache.url, timeout_s), agent_api(server.url), choice)
        yield Both(made, cache, server)
        made.close()


async def test_all_requests_go_through_the_cache() -> None:
    async with both(always(OK)) as two:
        for method in ("GET", "PATCH", "POST"):
            assert await two.api.request(method, "/x") == b"{}"
        assert [request.split(b" ")[0] for request in two.cache.requests] == [b"GET", b"PATCH", b"POST"]
        assert two.server.requests == []


async def test_an_error_of_the_request_is_raised_and_not_sent_again() -> None:
    async with both(always(status(409, "Conflict"))) as two:
        with pytest.raises(Conflict):
            await two.patch()
        assert two.server.requests == []


async def test_a_write_that_a_dead_cache_did_not_take_reaches_the_api_server_once() -> None:
    async with both(always(b"", keep=False)) as two:
        assert await two.patch() == b"{}"
        assert await two.patch() == b"{}"
        assert len(two.server.requests) == 2
        assert two.server.requests[0].startswith(b"PATCH /base/x ")


async def test_a_cache_that_cannot_serve_is_left_after_several_refusals() -> None:
    async with both(always(status(503, "ServiceUnavailable"))) as two:
        for _ in range(QUICK.refusals - 1):
            with pytest.raises(Unavailable):
                await two.patch()
        assert two.server.requests == []
        assert await two.patch() == b"{}"
        assert len(two.server.requests) == 1


async def test_a_cache_that_hangs_is_left() -> None:
    async def hang(request: bytes, writer: asyncio.StreamWriter) -> bool:
        await asyncio.sleep(3)
        return False

    async with both(hang, timeout_s=0.3) as two:
        assert await two.patch() == b"{}"
        assert len(two.server.requests) == 1


async def test_an_agent_returns_to_a_cache_that_answers_again() -> None:
    working = False

    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        if working:
            writer.write(OK)
            await writer.drain()
        return working

    async with both(answer) as two:
        await two.patch()
        working = True
        await until("it uses the cache", lambda: _went_through_cache(two))
        asked = len(two.server.requests)
        for _ in range(5):
            await two.patch()
        assert len(two.server.requests) == asked


async def _went_through_cache(two: Both) -> bool:
    before = len(two.server.requests)
    await two.patch()
    return len(two.server.requests) == before
