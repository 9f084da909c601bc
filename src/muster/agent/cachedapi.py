"""Sends the agent's requests through a read cache, and to the API server while the cache is away."""

from __future__ import annotations

import asyncio

from muster.agent.api import JSON, AgentApi
from muster.kube.connection.fallback import Fallback
from muster.kube.errors import ApiError


class CachedApi:
    """Requests through a read cache. All of them: so the API server has no connection to the agents of each node.

    Args:
        cache: sends requests to the cache, which passes on what it cannot answer.
        server: sends requests to the API server.
        fallback: decides between them.
    """

    def __init__(self, cache: AgentApi, server: AgentApi, fallback: Fallback) -> None:
        self._cache = cache
        self._server = server
        self._fallback = fallback

    async def request(self, method: str, path: str, body: bytes | None = None, content_type: str = JSON) -> bytes:
        """Send one request. If the cache is away, send it to the API server: all requests of agents may be sent twice.

        Raises:
            ApiError: it was refused or not answered (see muster.kube.errors).
            ConfigError: usable credentials are missing.
        """
        clock = asyncio.get_running_loop().time
        pause_s = self._fallback.choose(clock())
        if pause_s is None:
            try:
                answer = await self._cache.request(method, path, body, content_type)
            except ApiError as error:
                self._fallback.failed(error, clock(), gone=not error.status)
                if not self._fallback.away:
                    raise
                pause_s = self._fallback.direct(clock())
            else:
                self._fallback.answered()
                return answer
        await asyncio.sleep(pause_s)
        return await self._server.request(method, path, body, content_type)

    async def authorization(self) -> str:
        """Return the Authorization header of requests. Raises ConfigError without credentials."""
        return await self._server.authorization()

    def close(self) -> None:
        """Close the connections."""
        self._cache.close()
        self._server.close()
