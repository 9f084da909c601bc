"""The process of the guard."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from prometheus_client import REGISTRY, CollectorRegistry

from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.errors import BadConfig
from muster.kube.garbage import spare_collector
from muster.kube.health import Check, Progress, health_app, serve
from muster.kube.openfiles import raise_limit
from muster.kube.running import listening, mark_loop, run_until
from muster.kube.servertls import ServerTLS
from muster.telemetry.guard.accessmetrics import AccessMetrics
from muster.telemetry.guard.budgets.budgets import Budgets
from muster.telemetry.guard.callers import problems as callers
from muster.telemetry.guard.callers.callers import Callers
from muster.telemetry.guard.config import GuardConfig
from muster.telemetry.guard.configfile import ConfigFile, Loaded
from muster.telemetry.guard.dearest.dearest import Dearest
from muster.telemetry.guard.dearest.page import PATH as DEAREST
from muster.telemetry.guard.metrics import GuardMetrics, ServerMetrics
from muster.telemetry.guard.pricing.pricer import Pricer
from muster.telemetry.guard.serving.assessor import Assessor
from muster.telemetry.guard.serving.destination import make_destination
from muster.telemetry.guard.serving.handler import Backend, Handler
from muster.telemetry.guard.serving.probes import ProbeClient
from muster.telemetry.guard.serving.records import Record
from muster.telemetry.guard.serving.server import Server
from muster.telemetry.guard.serving.settings import ServingSettings
from muster.telemetry.guard.serving.upstream import Upstream

log = logging.getLogger(__name__)

USER_AGENT: Final = "muster-guard"
_LOOP: Final = "guard"


@dataclass(frozen=True, kw_only=True)
class GuardOptions:
    """The arguments of the process.

    Attributes:
        config: the file guard.yaml.
        listen: host and port for clients.
        metrics_listen: host and port of /metrics, /healthz and /readyz; None to serve none.
        kubeconfig: of the cluster whose tokens are accepted; None to find it as kubectl does.
    """

    config: Path
    listen: tuple[str, int] = ("127.0.0.1", 0)
    metrics_listen: tuple[str, int] | None = None
    kubeconfig: Path | None = None


async def run_guard(
    options: GuardOptions,
    stop: asyncio.Event,
    *,
    on_ready: Callable[[str, int], None] | None = None,
    registry: CollectorRegistry = REGISTRY,
    settings: ServingSettings | None = None,
) -> None:
    """Serve until `stop` is set.

    Args:
        options: the arguments of the process.
        stop: ends it.
        on_ready: called with the address once clients are served.
        registry: receives the metrics.
        settings: deadlines and limits of the HTTP side.

    Raises:
        ConfigError: a file cannot be used, or an address is in use or does not exist.
        ConfigTextError: the configuration is not valid.
    """
    settings = settings or ServingSettings()
    settings = replace(settings, connections_max=raise_limit(settings.connections_max))
    file = ConfigFile(options.config)
    progress = Progress(registry=registry)
    async with AsyncExitStack() as stack:
        guard = Guard(file.loaded, await _cluster(options, file.loaded.config, stack), settings, registry)
        stack.push_async_callback(guard.upstream.close)
        stack.push_async_callback(guard.probes.close)
        stack.push_async_callback(guard.pricer.close)
        registry.register(ServerMetrics(guard.server))
        registry.register(AccessMetrics(guard.callers, guard.budgets, guard.dearest, file, guard.destination.files))
        ready: dict[str, Check] = {
            "clients": lambda: None if guard.server.listening else "not listening yet",
            "stop": lambda: "stopping" if stop.is_set() else None,
        }
        if options.metrics_listen is not None:
            with listening("--metrics-listen", *options.metrics_listen):
                port = await stack.enter_async_context(
                    serve(health_app(progress, ready=ready, registry=registry), *options.metrics_listen)
                )
            log.info("metrics on http://%s:%d/metrics", options.metrics_listen[0], port)
        stack.push_async_callback(guard.handler.flights.close)
        stack.push_async_callback(guard.server.stop)
        with listening("--listen", *options.listen):
            host, port = await guard.server.listen(*options.listen)
        spare_collector()
        if not callers.any_known(file.loaded.config.callers):
            log.warning("callers is empty, so each request is refused; name callers in %s", options.config)
        log.info("serving on %s://%s:%d", "https" if guard.tls is not None else "http", host, port)
        if on_ready is not None:
            on_ready(host, port)
        work = [mark_loop(progress, _LOOP), file.run(guard.apply), guard.handler.revocation.run()]
        work.extend(guard.destination.follow())
        if guard.tls is not None:
            work.append(guard.tls.run())
        await run_until(stop, work)


class Guard:
    """The parts of a guard, wired together.

    Args:
        loaded: the configuration.
        client: of the API server, for its tokens; None without.
        settings: deadlines and limits of the HTTP side.
        registry: receives the metrics.

    Raises:
        ConfigError: a file of certificates, keys or a token cannot be used.
    """

    def __init__(
        self, loaded: Loaded, client: Client | None, settings: ServingSettings, registry: CollectorRegistry
    ) -> None:
        self._loaded, config = loaded, loaded.config
        self.metrics = GuardMetrics(registry)
        self.callers = Callers(config, client, loaded.authorities_pem)
        self.budgets = Budgets(config)
        self.dearest = Dearest(config.dearest)
        files = (Path(config.tls.certificate_file), Path(config.tls.key_file))
        self.tls = ServerTLS(files) if config.tls.certificate_file else None
        if self.tls is not None:
            self.tls.trust(self.callers.authorities.pem)
        self.destination = make_destination(config.upstream)
        self.upstream = Upstream(self.destination, settings)
        self.probes = ProbeClient(self.destination, settings.probe_connect_s)
        self.pricer = Pricer(self.probes, time.monotonic)
        pages = {DEAREST: lambda caller: self.dearest.page(caller, time.time())}
        self.handler = Handler(self._backend(config), self.callers, self.budgets, settings, self._ended, pages)
        self.metrics.in_flight.set_function(lambda: len(self.handler.flights))
        context = self.tls.context if self.tls is not None else None
        self.server = Server(self.handler.handle, settings, context)

    def apply(self, loaded: Loaded) -> None:
        """Use a changed configuration. Raises BadConfig; then all of the one before stays in use."""
        self.callers.replace(loaded.config, loaded.authorities_pem)
        if self.tls is not None:
            try:
                self.tls.trust(self.callers.authorities.pem)
            except ValueError as error:
                self.callers.replace(self._loaded.config, self._loaded.authorities_pem)
                raise BadConfig(f"callers.certificates.caFile cannot be used: {error}") from None
        self.budgets.replace(loaded.config)
        self.dearest.replace(loaded.config.dearest)
        self.handler.backend = self._backend(loaded.config)
        self._loaded = loaded

    def _backend(self, config: GuardConfig) -> Backend:
        prefix = urlsplit(config.upstream.url).path.rstrip("/")
        assess = Assessor(config, self.pricer, self.probes.key, time.time, self.probes.presence)
        return Backend(config, prefix, self.upstream, assess)

    def _ended(self, record: Record) -> None:
        duration_s = time.monotonic() - record.started_s
        self.metrics.count(record, duration_s)
        asked = record.asked(duration_s)
        if asked is not None:
            self.dearest.record(asked, time.time())


async def _cluster(options: GuardOptions, config: GuardConfig, stack: AsyncExitStack) -> Client | None:
    """Connect to the API server, if tokens of the cluster are accepted."""
    if not config.callers.cluster.callers:
        return None
    cluster = load_config(options.kubeconfig)
    return await stack.enter_async_context(Client(cluster, user_agent=USER_AGENT))
