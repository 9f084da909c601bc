"""The hub's server in the process of the controller: its certificate, its port, and the page of the leader."""

from __future__ import annotations

import ssl
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec
from aiohttp import web
from prometheus_client import REGISTRY, CollectorRegistry

from muster.api.names import LABEL_MANAGED_BY, MANAGED_BY
from muster.kube.client import Client
from muster.kube.connection.servingcertificates import load_pair
from muster.kube.progress import Progress
from muster.kube.secretcertificate import SecretCertificate
from muster.kube.tokenreview import TokenReviewer
from muster.network.uplink.hub import Hub, agent_node, serve_hub
from muster.network.uplink.metrics import uplink_metrics
from muster.network.uplink.wire import AUDIENCE

SERVICE: Final = "muster-network-hub"
"""The Service of the hub, and the ConfigMap with the authority of its certificate (key `ca.crt`)."""
TLS_SECRET: Final = "muster-network-hub-tls"
AGENT_ACCOUNT: Final = "muster-network"
"""The service account of agents."""
PAGE_PATH: Final = "/v1/uplink"


class HubServer(NamedTuple):
    """A hub that serves.

    Attributes:
        hub: the connections of agents.
        port: on which it listens.
        work: keeps the certificate valid; to be run as long as the hub serves.
    """

    hub: Hub
    port: int
    work: Coroutine[Any, Any, None]


@asynccontextmanager
async def hub_server(
    client: Client,
    namespace: str,
    host: str,
    port: int,
    progress: Progress | None = None,
    registry: CollectorRegistry = REGISTRY,
) -> AsyncIterator[HubServer]:
    """Serve agents while the context is open. Every replica serves; only the leader's hub accepts agents.

    Raises:
        ApiError: the certificate cannot be kept in its Secret.
        OSError: the address cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    hosts = [f"{SERVICE}.{namespace}.svc", f"{SERVICE}.{namespace}.svc.cluster.local"]
    certificate = SecretCertificate(
        client,
        namespace,
        TLS_SECRET,
        SERVICE,
        hosts,
        partial(load_pair, context),
        progress,
        labels={LABEL_MANAGED_BY: MANAGED_BY},
    )
    await certificate.keep()
    reviewer = TokenReviewer(client, AUDIENCE, agent_node(namespace, AGENT_ACCOUNT))
    hub = Hub(reviewer, uplink_metrics(registry), clock=time.monotonic)
    async with serve_hub(hub, context, host, port) as bound:
        yield HubServer(hub, bound, certificate.run())


def add_page(app: web.Application, hub: Hub) -> None:
    """Serve what the leader knows at PAGE_PATH. Another replica answers 503."""

    async def page(_: web.Request) -> web.Response:
        found = hub.page()
        if found is None:
            return web.Response(status=503, text="this replica does not allocate the uplink's budget\n")
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

    app.router.add_get(PAGE_PATH, page)
