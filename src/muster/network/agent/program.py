"""The process of the network agent: privileges, the pods of the node, its parts, and its pages."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiohttp import web
from prometheus_client import REGISTRY, CollectorRegistry

from muster.api.names import LABEL_TEAM, SYSTEM_NAMESPACE
from muster.kube.client import Client
from muster.kube.connection.cachedtransport import cached_transport
from muster.kube.connection.config import ClusterConfig, load_config
from muster.kube.errors import BadConfig, ConfigError
from muster.kube.health import health_app, serve
from muster.kube.nodetoken import node_of_token
from muster.kube.progress import Progress
from muster.kube.running import mark_loop, run_until
from muster.network.agent.metrics import AgentMetrics
from muster.network.agent.part import HostPaths, PartSetup
from muster.network.agent.parts import make_parts
from muster.network.agent.statelock import locked
from muster.network.config import NetworkConfig, parse_config
from muster.network.localpods.follow import FollowedPods

log = logging.getLogger(__name__)

USER_AGENT: Final = "muster-network"
_UID_AGAIN_S: Final = 600.0
_LOOP: Final = "loop"


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The arguments of the process.

    Attributes:
        node: name of the node.
        config: file with the configuration; None: every part is off.
        kubeconfig: the cluster; None to find it as kubectl does.
        listen: host and port of /healthz, /readyz, /metrics and the pages of parts; None serves none.
        namespace: Muster's own.
        team_key: label of pods that names their team.
        paths: folders of the node.
        read_cache: address of a read cache; "" for none.
        read_cache_ca: its authorities, PEM.
    """

    node: str
    config: Path | None = None
    kubeconfig: Path | None = None
    listen: tuple[str, int] | None = None
    namespace: str = SYSTEM_NAMESPACE
    team_key: str = LABEL_TEAM
    paths: HostPaths = field(default_factory=HostPaths)
    read_cache: str = ""
    read_cache_ca: Path | None = None


def read_config(path: Path | None) -> NetworkConfig:
    """Read the configuration; defaults without the argument.

    Raises:
        BadConfig: the file is missing or cannot be read.
        ConfigTextError: it is not valid.
    """
    if path is None:
        return NetworkConfig()
    try:
        text = path.read_text()
    except OSError as error:
        raise BadConfig(f"--config: {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise BadConfig(f"--config: {path} is not text: {error}; write YAML in UTF-8") from error
    return parse_config(text, str(path))


async def run_agent(
    options: AgentOptions,
    config: NetworkConfig,
    stop: asyncio.Event,
    *,
    on_ready: Callable[[int], None] | None = None,
    registry: CollectorRegistry = REGISTRY,
) -> None:
    """Run the parts that the configuration turns on, until `stop` is set.

    Args:
        options: the arguments of the process.
        config: of the parts.
        stop: ends it.
        on_ready: called with the port of the pages.
        registry: receives the metrics.

    Raises:
        ConfigError: the cluster is not configured.
        StateInUse: another agent runs with this state.
        OSError: a folder cannot be made, or an address is in use.
    """
    cluster = load_config(options.kubeconfig)
    options.paths.run.mkdir(mode=0o700, parents=True, exist_ok=True)
    progress = Progress(registry=registry)
    pages: dict[str, Callable[[], bytes]] = {}
    uid = NodeUid(cluster, options.node)
    async with AsyncExitStack() as stack:
        stack.enter_context(locked(options.paths.state))
        client = await stack.enter_async_context(_client(cluster, options))
        pods = FollowedPods(client, options.node, options.team_key, options.paths.state, options.paths.cgroup, progress)
        registry.register(AgentMetrics(pods))
        setup = PartSetup(
            node=options.node,
            node_uid=lambda: uid.value,
            paths=options.paths,
            pods=pods,
            client=client,
            namespace=options.namespace,
            progress=progress,
            registry=registry,
            config=config,
            publish=pages.__setitem__,
        )
        parts = list(make_parts(setup, config))
        log.info("node %s, parts: %s", options.node, ", ".join(name for name, _ in parts) or "none")
        if options.listen is not None:
            app = health_app(progress, ready={"loops": lambda: _late(progress)}, registry=registry)
            app.router.add_get("/v1/{page}", _pages(pages))
            port = await stack.enter_async_context(serve(app, *options.listen))
            log.info("metrics on http://%s:%d/metrics", options.listen[0], port)
            if on_ready is not None:
                on_ready(port)
        works: list[Coroutine[Any, Any, None]] = [mark_loop(progress, _LOOP), uid.run(), pods.run()]
        await run_until(stop, [*works, *(part.run() for _, part in parts)])


class NodeUid:
    """The UID of the node, from the pod's own token: the agent needs no right to read nodes."""

    def __init__(self, cluster: ClusterConfig, node: str) -> None:
        self._credentials = cluster.credentials
        self._node = node
        self.value = ""
        """The UID; "" while it is unknown."""

    async def run(self) -> None:
        """Read it again from time to time, until cancelled."""
        while True:
            try:
                name, found = node_of_token(await self._credentials.authorization())
                if name == self._node:
                    self.value = found
            except ConfigError as error:
                log.warning("the UID of node %s is not known: %s", self._node, error)
            await asyncio.sleep(_UID_AGAIN_S)


def _client(cluster: ClusterConfig, options: AgentOptions) -> Client:
    if not options.read_cache:
        return Client(cluster, user_agent=USER_AGENT)
    transport = cached_transport(cluster, options.read_cache, options.read_cache_ca, user_agent=USER_AGENT)
    return Client(cluster, user_agent=USER_AGENT, transport=transport)


def _pages(pages: dict[str, Callable[[], bytes]]) -> Callable[[web.Request], Coroutine[Any, Any, web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        render = pages.get(request.match_info["page"])
        if render is None:
            known = ", ".join(f"/v1/{name}" for name in sorted(pages)) or "none: every part is off"
            return web.Response(status=404, text=f"pages of this agent: {known}\n")
        return web.Response(body=render(), content_type="application/json")

    return answer


def _late(progress: Progress) -> str | None:
    """Return the loops past their deadline; None if there are none."""
    return ", ".join(sorted(progress.overdue())) or None


def node_name(given: str) -> str:
    """Return the name of this node: the one given, else NODE_NAME. Raises BadConfig without both."""
    name = given or os.environ.get("NODE_NAME", "")
    if not name:
        raise BadConfig("the node is not known; set --node or NODE_NAME to its name")
    return name
