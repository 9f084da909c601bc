"""`/healthz`, `/readyz` and `/metrics` of a process, and the progress marks liveness depends on."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import REGISTRY, CollectorRegistry, Gauge
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest


class Progress:
    """When each loop last moved, and by when it must move again.

    Deadlines are measured on a monotonic clock, so a step of the wall clock neither kills nor hides a stall.

    Args:
        clock: monotonic seconds.
        registry: where the age of each mark is exported; None exports nothing.
    """

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, registry: CollectorRegistry | None = None
    ) -> None:
        self._clock = clock
        self._marks: dict[str, tuple[float, float]] = {}
        self._gauge: Gauge | None = None
        if registry is not None:
            self._gauge = Gauge(
                "muster_progress_age_seconds", "Seconds since a loop last made progress.", ["loop"], registry=registry
            )

    def expect(self, name: str, deadline_s: float) -> None:
        """Require a mark for `name` at least every `deadline_s` seconds, from now on."""
        self._marks[name] = (self._clock(), deadline_s)
        if self._gauge is not None:
            self._gauge.labels(name).set_function(lambda: self.age_s(name))

    def mark(self, name: str) -> None:
        """Say that `name` made progress. A name nobody expects is ignored."""
        known = self._marks.get(name)
        if known is not None:
            self._marks[name] = (self._clock(), known[1])

    def drop(self, name: str) -> None:
        """Stop expecting anything of `name`: it ended as it should."""
        if self._marks.pop(name, None) is not None and self._gauge is not None:
            self._gauge.remove(name)

    def age_s(self, name: str) -> float:
        """Seconds since the last mark of `name`; 0 for an unknown name."""
        known = self._marks.get(name)
        return self._clock() - known[0] if known is not None else 0.0

    def overdue(self) -> dict[str, float]:
        """Return the loops past their deadline, with the seconds since their last mark."""
        now = self._clock()
        return {name: now - marked for name, (marked, deadline_s) in self._marks.items() if now - marked > deadline_s}


Check = Callable[[], str | None]
"""Returns None when ready, else what is missing."""


def health_app(
    progress: Progress, *, ready: Mapping[str, Check] | None = None, registry: CollectorRegistry = REGISTRY
) -> web.Application:
    """Make the aiohttp application; add it to a server or as a sub-application.

    /healthz answers 500 naming loops past their deadline, /readyz 503 naming what is not ready (`ready` may be a live
    mapping that is filled later).
    """
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
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        yield int(runner.addresses[0][1])
    finally:
        await runner.cleanup()
