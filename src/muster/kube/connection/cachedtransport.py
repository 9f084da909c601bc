"""Sends reads through a read cache, and to the API server while the cache is away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp

from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.fallback import Fallback
from muster.kube.connection.readcacheconfig import read_cache_config
from muster.kube.connection.transport import Answer, Fence, Headers, HttpTransport, NotSent, Params, Transport
from muster.kube.errors import ApiError, ServerTimeout

_CONNECTIONS = 64
"""Most requests in flight to each of the two."""


def cached_transport(config: ClusterConfig, url: str, ca_file: Path | None, *, user_agent: str) -> CachedTransport:
    """Return a transport through the read cache at `url`.

    Raises:
        ConfigError: as `read_cache_config`.
    """
    cache = read_cache_config(config, url, ca_file)
    return CachedTransport(
        HttpTransport(cache, user_agent=user_agent, connections=_CONNECTIONS),
        HttpTransport(config, user_agent=user_agent, connections=_CONNECTIONS),
        Fallback(url, random.Random()),
    )


class CachedTransport:
    """A transport for reads and watches through a cache.

    Writes go to the API server, and so do reads of leases: they decide who leads. Logs and exec do too.

    Args:
        cache: sends requests to the cache.
        server: sends requests to the API server.
        fallback: decides between them.
    """

    def __init__(self, cache: Transport, server: Transport, fallback: Fallback) -> None:
        self._cache = cache
        self._server = server
        self._fallback = fallback

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params,
        body: bytes | None,
        headers: Headers,
        timeout_s: float,
        fence: Fence | None = None,
    ) -> Answer:
        """Send one request. A read that did not reach the cache is sent to the API server."""
        if method == "GET" and "/leases" not in path and await self._use_cache():
            try:
                answer = await self._cache.request(
                    method, path, params=params, body=body, headers=headers, timeout_s=timeout_s, fence=fence
                )
            except ApiError as error:
                self._failed(error)
                if not isinstance(error, NotSent):
                    raise
            else:
                if answer.status < 500:
                    self._fallback.answered()
                else:
                    self._failed(answer.error())
                if not self._fallback.away:
                    return answer
            await self._wait_for_server()
        return await self._server.request(
            method, path, params=params, body=body, headers=headers, timeout_s=timeout_s, fence=fence
        )

    @asynccontextmanager
    async def chunks(
        self, path: str, *, params: Params, stall_s: float, headers: Headers | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """GET a stream. One that cannot be opened at the cache is opened at the API server."""
        async with AsyncExitStack() as stack:
            if await self._use_cache():
                opening = self._cache.chunks(path, params=params, stall_s=stall_s, headers=headers)
                try:
                    chunks = await stack.enter_async_context(opening)
                except ApiError as error:
                    self._failed(error)
                    if not self._fallback.away:
                        raise
                    await self._wait_for_server()
                else:
                    self._fallback.answered()
                    yield self._watched(chunks)
                    return
            opening = self._server.chunks(path, params=params, stall_s=stall_s, headers=headers)
            yield await stack.enter_async_context(opening)

    def stream(self, method: str, path: str, *, params: Params) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Open a response of unknown length at the API server."""
        return self._server.stream(method, path, params=params)

    def websocket(
        self, path: str, *, params: Params, protocols: Sequence[str]
    ) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket at the API server."""
        return self._server.websocket(path, params=params, protocols=protocols)

    async def close(self) -> None:
        """Close all connections."""
        try:
            await self._cache.close()
        finally:
            await self._server.close()

    async def _use_cache(self) -> bool:
        """Choose the cache, or wait until the request may go to the API server."""
        pause_s = self._fallback.choose(asyncio.get_running_loop().time())
        if pause_s is not None:
            await asyncio.sleep(pause_s)
        return pause_s is None

    async def _wait_for_server(self) -> None:
        await asyncio.sleep(self._fallback.direct(asyncio.get_running_loop().time()))

    async def _watched(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            async for chunk in chunks:
                yield chunk
        except ServerTimeout as error:
            self._failed(error)
            raise

    def _failed(self, error: ApiError) -> None:
        gone = isinstance(error, NotSent) or (isinstance(error, ServerTimeout) and not error.status)
        self._fallback.failed(error, asyncio.get_running_loop().time(), gone=gone)
