"""A door of an API server that counts the watches which are open through it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
from aiohttp import web

from muster.kube.connection.config import ClusterConfig

_HEADERS = ("Accept", "Content-Type", "User-Agent")
Watch = tuple[str, str, str]
"""Path, label selector and field selector."""


class WatchProxy:
    """Passes requests on to the server of `config`, with its credentials."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self.open = Counter[Watch]()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        query = request.query
        watch = (request.path, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        watches = query.get("watch") in ("1", "true")
        headers = {name: request.headers[name] for name in _HEADERS if name in request.headers}
        authorization = await self._config.credentials.authorization()
        if authorization:
            headers["Authorization"] = authorization
        self.open[watch] += watches
        try:
            async with self._session.request(
                request.method, f"{self._config.server}{request.path_qs}", headers=headers, data=await request.read()
            ) as answer:
                response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
                await response.prepare(request)
                async for data in answer.content.iter_any():
                    await response.write(data)
                await response.write_eof()
                return response
        finally:
            self.open[watch] -= watches

    @asynccontextmanager
    async def serving(self, folder: Path, port: int = 0) -> AsyncIterator[Path]:
        """Context in which the proxy serves, on any free port by default; gives a kubeconfig for it."""
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", self._forward)
        runner = web.AppRunner(app, shutdown_timeout=1, handler_cancellation=True)
        connector = aiohttp.TCPConnector(ssl=self._config.ssl_context() or False, limit=0)
        async with aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=True
        ) as self._session:
            await runner.setup()
            try:
                site = web.TCPSite(runner, "127.0.0.1", port)
                await site.start()
                url = runner.addresses[0]
                path = folder / "kubeconfig"
                path.write_text(json.dumps(_kubeconfig(f"http://{url[0]}:{url[1]}")))
                yield path
            finally:
                with suppress(ConnectionError):
                    await runner.cleanup()


def _kubeconfig(server: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
