"""Serves `/healthz`, `/readyz` and `/metrics` of a process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import REGISTRY, CollectorRegistry, disable_created_metrics
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from muster.kube.progress import Progress

__all__ = ["Check", "Progress", "health_app", "serve"]

Check = Callable[[], str | None]
"""Returns None when ready, else what is missing."""


def health_app(
    progress: Progress, *, ready: Mapping[str, Check] | None = None, registry: CollectorRegistry = REGISTRY
) -> web.Application:
    """Make the aiohttp application; add it to a server or as a sub-application.

    /healthz answers 500 and names the loops past their deadline. /readyz answers 503 and names the parts that are not
    ready. `ready` may be a mapping that is filled later.
    """
    # one more series beside each counter and histogram, which no query of ours reads
    disable_created_metrics()  # type: ignore[no-untyped-call]
    checks = ready if ready is not None else {}

    async def healthz(_: web.Request) -> web.Response:
        late = progress.overdue()
        lines = [f"{name}: no progress for {age_s:.0f} s" for name, age_s in sorted(late.items())]
        return web.Response(status=500 if late else 200, text="\n".join(lines) + "\n" if late else "ok\n")

    async def readyz(_: web.Request) -> web.Response:
        missing = [f"{name}: {why}" for name, check in sorted(checks.items()) if (why := check()) is not None]
        return web.Response(status=503 if missing else 200, text="\n".join(missing) + "\n" if missing else "ok\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app


@asynccontextmanager
async def serve(app: web.Application, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[int]:
    """Serve `app` on plain HTTP while the context is open; yields the port (0 lets the system choose one)."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
