"""An upstream of the read cache that answers as its script says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.credentials import StaticToken
from muster.readcache.serving.forward import UpstreamForwarder
from muster.readcache.serving.settings import ServingSettings
from tests.support.rawserver import Script, Upstream


@asynccontextmanager
async def upstream(
    script: Script, settings: ServingSettings | None = None
) -> AsyncIterator[tuple[Upstream, UpstreamForwarder]]:
    """An upstream, and a forwarder to it whose own credentials must never be seen."""
    server = Upstream(script)
    await server.start()
    config = ClusterConfig(f"http://127.0.0.1:{server.port}", credentials=StaticToken("own"))
    forwarder = UpstreamForwarder(config, settings)
    try:
        yield server, forwarder
    finally:
        forwarder.close()
        await server.close()
