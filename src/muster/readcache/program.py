"""The process of the read cache: followers, decisions about access, and the server."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from prometheus_client import REGISTRY, CollectorRegistry

from muster.api.names import LABEL_MANAGED_BY, MANAGED_BY, SYSTEM_NAMESPACE
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig, load_config
from muster.kube.connection.transport import HttpTransport
from muster.kube.errors import ApiError, ConfigError, NotFound
from muster.kube.health import Check, Progress, health_app, serve
from muster.kube.openfiles import raise_limit
from muster.kube.requestlog import RequestLog
from muster.kube.running import listening, mark_loop, run_until
from muster.kube.secretcertificate import SecretCertificate
from muster.kube.servertls import ServerTLS
from muster.readcache.access.access import Access
from muster.readcache.access.authorities import AuthoritiesFollower
from muster.readcache.access.certificates import cluster_authorities
from muster.readcache.access.settings import AccessSettings
from muster.readcache.kindnames import DEFAULT_KINDS, resolve
from muster.readcache.kinds import CachedKind
from muster.readcache.metrics import AccessMetrics, KindMetrics, ServerMetrics
from muster.readcache.reads.bookmarks import BookmarkTimer
from muster.readcache.reads.freshness import Limits as ReadLimits
from muster.readcache.reads.reads import Reads
from muster.readcache.reads.targets import KindKey, kind_key, parse_target
from muster.readcache.request import Request, Target
from muster.readcache.requestlog import RequestTracer
from muster.readcache.serving.forward import UpstreamForwarder
from muster.readcache.serving.server import Server
from muster.readcache.serving.settings import ServingSettings
from muster.readcache.sources import CachedSources

log = logging.getLogger(__name__)

USER_AGENT: Final = "muster-readcache"
TLS_SECRET: Final = "muster-readcache-tls"
CA_CONFIG_MAP: Final = "muster-readcache-ca"
"""Where clients find the authority of the certificate, under `ca.crt`."""
NODE_TLS_SECRET: Final = "muster-readcache-node-tls"
NODE_CA_CONFIG_MAP: Final = "muster-readcache-node-ca"
_NODE_HOSTS: Final = ("127.0.0.1", "localhost")
_KIND_AGAIN_S: Final = 15.0
"""Pause before an absent kind is looked for again: its CustomResourceDefinition may come later."""
_FIRST_AGAIN_S: Final = 1.0
_LOOP: Final = "readcache"


@dataclass(frozen=True, kw_only=True)
class ReadCacheOptions:
    """The arguments of the process.

    Attributes:
        kubeconfig: the cluster; None to find it as kubectl does.
        listen: host and port for clients.
        metrics_listen: host and port of /metrics, /healthz and /readyz; None to serve none.
        tls: PEM files of the certificate and its key.
        hosts: names and addresses with which clients call. With them the cache makes its own certificate, in a Secret.
            Without them and without `tls` it serves plain HTTP.
        namespace: of the Secrets and ConfigMaps for certificates.
        node_certificate: also keep a certificate for 127.0.0.1 in a Secret, for caches on nodes.
        client_certificates: accept client certificates of the cluster's authorities, if there is TLS.
        kinds: names of the kinds to cache, see kindnames.
        audiences: audiences of accepted tokens; empty: those of the API server.
        decision_age_s: greatest age of a decision about access; 0 asks each time.
        max_stale_s: how long old state is served while the API server is away.
        log_bytes: bytes of all event logs together.
        client_bytes: bytes that may wait for clients.
        request_log: file that receives a line for each request, for `muster doctor`; None for none.
    """

    kubeconfig: Path | None = None
    listen: tuple[str, int] = ("127.0.0.1", 0)
    metrics_listen: tuple[str, int] | None = None
    tls: tuple[Path, Path] | None = None
    hosts: tuple[str, ...] = ()
    namespace: str = SYSTEM_NAMESPACE
    node_certificate: bool = False
    client_certificates: bool = True
    kinds: tuple[str, ...] = DEFAULT_KINDS
    audiences: tuple[str, ...] = ()
    decision_age_s: float = 10.0
    max_stale_s: float = 300.0
    log_bytes: int = 1 << 30
    client_bytes: int = 512 << 20
    request_log: Path | None = None


class ReadCache:
    """The parts of a read cache, wired together.

    Attributes:
        kinds: the kinds that are served from the cache; others are forwarded.
        sources: what is followed.
        access: decides who may read.
        server: the HTTP server.
    """

    def __init__(
        self,
        client: Client,
        transport: HttpTransport,
        config: ClusterConfig,
        options: ReadCacheOptions,
        rng: random.Random | None = None,
        requests: RequestLog | None = None,
    ) -> None:
        rng = rng or random.Random()
        self._client = client
        self._kinds: dict[KindKey, CachedKind] = {}
        self._names: dict[CachedKind, str] = {}
        self.missing: dict[str, str] = dict.fromkeys(options.kinds, "not looked for yet")
        self._sought = asyncio.Event()
        self.sources = CachedSources(transport, log_bytes=options.log_bytes, rng=rng)
        self.authorities = cluster_authorities()
        self.tls = ServerTLS(options.tls) if options.tls is not None or options.hosts else None
        access = AccessSettings(audiences=options.audiences, decision_max_age_s=options.decision_age_s)
        serving = ServingSettings(waiting_bytes_max=options.client_bytes)
        serving = replace(serving, connections_max=raise_limit(serving.connections_max))
        bookmarks = BookmarkTimer(asyncio.get_running_loop(), rng)
        self.access = Access(client, access, self.authorities)
        self.server = Server(
            self._route,
            self.access,
            Reads(self.sources, bookmarks, rng, ReadLimits(max_stale_s=options.max_stale_s)),
            UpstreamForwarder(config),
            settings=serving,
            context=self.tls.context if self.tls is not None else None,
            rng=rng,
            tracer=RequestTracer(requests.write) if requests is not None else None,
        )

    def _route(self, request: Request) -> Target | None:
        return parse_target(request, self._kinds)

    async def find_kinds(self) -> None:
        """Look for all kinds, and again for those that vanish, because they may come back in another form.

        Requests for those that the API server lacks are forwarded.
        """
        while True:
            for kind in await self.sources.drop_absent():
                if name := self._names.pop(kind, ""):
                    del self._kinds[kind_key(kind)]
                    self.missing[name] = "no longer served"
            unknown = False
            for name in list(self.missing):
                try:
                    kind = await resolve(self._client, name)
                except ApiError as error:
                    text = str(error)
                    if self.missing[name] != text:
                        level = logging.INFO if isinstance(error, NotFound) else logging.WARNING
                        log.log(level, "%s is not cached yet: %s", name, text)
                    self.missing[name] = text
                    unknown = unknown or not isinstance(error, NotFound)
                    continue
                self._kinds[kind_key(kind)] = kind
                self._names[kind] = name
                del self.missing[name]
            if not unknown:
                self._sought.set()
            await asyncio.sleep(_KIND_AGAIN_S if self._sought.is_set() else _FIRST_AGAIN_S)

    async def sought(self) -> None:
        """Wait until each kind was found, or the API server said that it lacks it."""
        await self._sought.wait()

    def not_ready(self) -> str | None:
        """Return what is missing before clients can be served. A kind that the server lacks does not count."""
        return (
            None
            if self._sought.is_set()
            else "kinds are not known yet: " + "; ".join(sorted(set(self.missing.values())))
        )

    def change_authorities(self) -> None:
        """Ask clients for certificates of the new authorities."""
        if self.tls is not None:
            self.tls.trust(self.authorities.pem)


async def run_readcache(
    options: ReadCacheOptions,
    stop: asyncio.Event,
    *,
    on_ready: Callable[[str, int, ReadCache], None] | None = None,
    registry: CollectorRegistry = REGISTRY,
) -> None:
    """Serve until `stop` is set.

    Args:
        options: the arguments of the process.
        stop: ends it.
        on_ready: called with the address and the parts once clients are served.
        registry: receives the metrics.

    Raises:
        ConfigError: the cluster or the certificate is not configured, the request log cannot be opened,
            or an address is in use or does not exist.
    """
    config = load_config(options.kubeconfig)
    progress = Progress(registry=registry)
    async with AsyncExitStack() as stack:
        transport = HttpTransport(config, user_agent=USER_AGENT, connections=64)
        client = await stack.enter_async_context(Client(config, user_agent=USER_AGENT, transport=transport))
        requests = _request_log(options.request_log) if options.request_log is not None else None
        if requests is not None:
            stack.callback(requests.close)
        cache = ReadCache(client, transport, config, options, requests=requests)
        stack.push_async_callback(cache.sources.close)
        registry.register(KindMetrics(cache.sources))
        registry.register(ServerMetrics(cache.server))
        registry.register(AccessMetrics(cache.access))
        work: list[Callable[[], Coroutine[Any, Any, None]]] = [
            cache.find_kinds,
            cache.sources.run,
            partial(mark_loop, progress, _LOOP),
        ]
        ready: dict[str, Check] = {
            "kinds": cache.not_ready,
            "stop": lambda: "stopping" if stop.is_set() else None,
        }
        if cache.tls is not None:
            work.append(cache.tls.run)
        if cache.tls is not None and options.client_certificates:
            authorities = AuthoritiesFollower(client, cache.authorities, cache.change_authorities, progress)
            work.append(authorities.run)
            ready["client-authorities"] = authorities.not_ready
        for name, certificate in _certificates(client, cache, options, progress).items():
            work.append(certificate.run)
            ready[name] = certificate.not_ready
        if options.metrics_listen is not None:
            with listening("--metrics-listen", *options.metrics_listen):
                port = await stack.enter_async_context(
                    serve(health_app(progress, ready=ready, registry=registry), *options.metrics_listen)
                )
            log.info("metrics on http://%s:%d/metrics", options.metrics_listen[0], port)
        stack.push_async_callback(cache.server.stop)
        work.append(partial(_listen, cache, options.listen, on_ready))
        await run_until(stop, [start() for start in work])


async def _listen(
    cache: ReadCache, listen: tuple[str, int], on_ready: Callable[[str, int, ReadCache], None] | None
) -> None:
    """Accept clients once the kinds are known. Before that, the API server would get all their watches."""
    await cache.sought()
    with listening("--listen", *listen):
        host, port = cache.server.listen(*listen)
    log.info("serving on %s://%s:%d", "https" if cache.tls is not None else "http", host, port)
    if on_ready is not None:
        on_ready(host, port, cache)
    await asyncio.Event().wait()


def _certificates(
    client: Client, cache: ReadCache, options: ReadCacheOptions, progress: Progress
) -> dict[str, SecretCertificate]:
    """The certificates that this process keeps in Secrets, by the names of their checks."""
    kept: dict[str, SecretCertificate] = {}
    if options.hosts and cache.tls is not None:
        kept["certificate"] = SecretCertificate(
            client,
            options.namespace,
            TLS_SECRET,
            CA_CONFIG_MAP,
            options.hosts,
            cache.tls.use,
            progress,
            labels={LABEL_MANAGED_BY: MANAGED_BY},
        )
    if options.node_certificate:
        kept["node-certificate"] = SecretCertificate(
            client,
            options.namespace,
            NODE_TLS_SECRET,
            NODE_CA_CONFIG_MAP,
            _NODE_HOSTS,
            None,
            progress,
            labels={LABEL_MANAGED_BY: MANAGED_BY},
        )
    return kept


def _request_log(path: Path) -> RequestLog:
    try:
        return RequestLog(path)
    except OSError as error:
        raise ConfigError(f"the request log {path} cannot be opened: {error.strerror or error}") from error
