"""When the read cache is ready for clients."""

from __future__ import annotations

import asyncio

import pytest

from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.transport import HttpTransport
from muster.kube.errors import ApiError, NotFound, Unavailable
from muster.readcache import program
from muster.readcache.kinds import CachedKind
from muster.readcache.program import ReadCache, ReadCacheOptions
from tests.support.waiting import until


async def test_ready_once_it_is_known_which_kinds_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    answer: ApiError = Unavailable(0, "ConnectionRefused", "connection refused")
    asked = 0

    async def resolve(client: Client, name: str) -> CachedKind:
        nonlocal asked
        asked += 1
        raise answer

    monkeypatch.setattr(program, "resolve", resolve)
    config = ClusterConfig("http://127.0.0.1:1")
    transport = HttpTransport(config, user_agent="test", connections=1)
    cache = ReadCache(Client(config, transport=transport), transport, config, ReadCacheOptions(kinds=("widgets.a.b",)))
    looking = asyncio.create_task(cache.find_kinds())
    try:
        await until("the kind was looked for", lambda: asked)
        assert cache.not_ready() == "kinds are not known yet: connection refused"
        answer = NotFound(404, "NotFound", "no widgets")
        await until("it is ready: requests for a kind that is not there are forwarded", lambda: not cache.not_ready())
    finally:
        looking.cancel()
        await asyncio.wait([looking])
        await cache.sources.close()
        await transport.close()
