"""A server that answers some paths of Prometheus' API, for servers that cannot run here."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from aiohttp import web

from tests.support.closing import stopped

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serve every path with one handler, over HTTPS with `tls`."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await stopped(runner)


def vector(*samples: tuple[Mapping[str, str], float]) -> dict[str, Any]:
    """The data of a query's answer."""
    result = [{"metric": dict(labels), "value": [1.0, str(value)]} for labels, value in samples]
    return {"resultType": "vector", "result": result}


def answering(pages: Mapping[str, Any], queries: Mapping[str, Any], asked: list[str] | None = None) -> Handler:
    """Answer paths and queries. Other paths are 404 as plain text, and other queries have no series."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if asked is not None:
            asked.append(request.path_qs)
        if request.path in pages:
            return web.json_response(pages[request.path])
        if request.path == "/api/v1/query":
            data = queries.get(request.query["query"], vector())
            return web.json_response({"status": "success", "data": data})
        return web.Response(status=404, text="404 page not found")

    return handler
