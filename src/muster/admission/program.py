"""The webhook's process: watches, certificates, the HTTPS server and health."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from aiohttp import StreamReader, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage
from prometheus_client import REGISTRY

from muster.admission.homes import Homes
from muster.admission.metrics import AdmissionMetrics
from muster.admission.mutate import Rules
from muster.admission.server import BODY_BYTES_MAX, AdmissionServer
from muster.admission.trust import Trust
from muster.api.names import LABEL_TEAM, SYSTEM_NAMESPACE
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.garbage import spare_collector
from muster.kube.health import Check, Progress, health_app, serve

log = logging.getLogger(__name__)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_BACKLOG: Final = 1024
_LINGER_S: Final = 3.0
"""The time between reporting "not ready" and closing: until then the API server may still call this server."""
_STOP_S: Final = 5.0


@dataclass(frozen=True, kw_only=True)
class AdmissionOptions:
    """The arguments of the process.

    Attributes:
        kubeconfig: the cluster; None to find it as kubectl does.
        listen: host and port for the API server.
        metrics_listen: host and port of /metrics, /healthz and /readyz; None to serve none.
        namespace: the namespace of the certificates' Secret and of the allocation's ConfigMap.
        hosts: names and addresses with which the API server calls.
        team_key: label of pods and nodes, and taint of nodes, that name a team.
        namespace_key: label of namespaces that names their team; "" for the team key.
    """

    kubeconfig: Path | None = None
    listen: tuple[str, int] = ("127.0.0.1", 0)
    metrics_listen: tuple[str, int] | None = None
    namespace: str = SYSTEM_NAMESPACE
    hosts: tuple[str, ...] = field(default=())
    team_key: str = LABEL_TEAM
    namespace_key: str = ""


async def run_admission(options: AdmissionOptions, stop: asyncio.Event) -> None:
    """Serve until `stop` is set. Raises ConfigError if the cluster is not configured."""
    progress = Progress(registry=REGISTRY)
    metrics = AdmissionMetrics(REGISTRY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    hosts = options.hosts or (f"muster-admission.{options.namespace}.svc",)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(load_config(options.kubeconfig), user_agent="muster-admission"))
        homes = Homes(client, options.namespace, options.namespace_key or options.team_key, progress)
        trust = Trust(client, options.namespace, hosts, context, metrics, progress)
        if options.metrics_listen is not None:
            ready: dict[str, Check] = {
                "certificates": trust.not_ready,
                "namespaces": homes.not_ready,
                "stop": lambda: "stopping" if stop.is_set() else None,
            }
            app = health_app(progress, ready=ready)
            port = await stack.enter_async_context(serve(app, *options.metrics_listen))
            log.info("metrics on http://%s:%d/metrics", options.metrics_listen[0], port)
        server = AdmissionServer(homes, Rules(options.team_key), metrics)
        port = await stack.enter_async_context(serve_https(server.handle, context, *options.listen))
        log.info("webhook on https://%s:%d/mutate", options.listen[0], port)
        await _until(stop, homes, trust)


@asynccontextmanager
async def serve_https(handle: Handler, context: ssl.SSLContext | None, host: str, port: int) -> AsyncIterator[int]:
    """Serve with the certificates of the context, which may be loaded later, while this is open. Yields the port."""
    loop = asyncio.get_running_loop()

    def request(
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> web.BaseRequest:
        return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=BODY_BYTES_MAX)

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    server = web.Server(handle, request_factory=request, access_log=None)
    runner = web.ServerRunner(server, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, ssl_context=context, backlog=_BACKLOG).start()
        yield int(listener.getsockname()[1])
    finally:
        await runner.cleanup()
        listener.close()


async def _until(stop: asyncio.Event, homes: Homes, trust: Trust) -> None:
    """Run both until `stop`, and a moment longer. If one fails, both end and its error is raised."""
    tasks = [asyncio.create_task(homes.run()), asyncio.create_task(trust.run())]
    stopped, known = asyncio.create_task(_stopped(stop)), asyncio.create_task(_known(homes))
    try:
        done, _ = await asyncio.wait([*tasks, stopped], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in (*tasks, stopped, known):
            task.cancel()
        await asyncio.wait([*tasks, stopped, known], timeout=_STOP_S)


async def _known(homes: Homes) -> None:
    await homes.known()
    spare_collector()


async def _stopped(stop: asyncio.Event) -> None:
    await stop.wait()
    await asyncio.sleep(_LINGER_S)
