"""A server that caches nothing: it forwards each request with the caller's own credentials, and records it."""

from __future__ import annotations

import ssl
from collections.abc import Callable

from muster.kube.connection.config import ClusterConfig
from muster.kube.requestlog import RequestLine
from muster.readcache.request import Answer, Forward, Request, Target
from muster.readcache.requestlog import RequestTracer
from muster.readcache.serving.forward import UpstreamForwarder
from muster.readcache.serving.server import Server
from muster.readcache.serving.watching import Watch


class _Everything:
    """Takes the places of access and reads: the API server decides and answers everything."""

    async def admit(self, target: Target, request: Request) -> Forward:
        """Forward it."""
        return Forward("recorded only")

    async def answer(self, target: Target, request: Request) -> Answer | Watch | Forward:
        """Forward it."""
        return Forward("recorded only")


def recording_server(
    config: ClusterConfig,
    write: Callable[[RequestLine], None],
    *,
    node: str = "",
    context: ssl.SSLContext | None = None,
) -> Server:
    """Return a server in front of one API server.

    Args:
        config: address and authority of the API server. Its credentials are not used.
        write: receives a line for each request.
        node: name of the node of all clients, "" if they are on several.
        context: for TLS; None for plain HTTP.

    Raises:
        ConfigError: the API server can only be reached through a proxy.
    """
    everything = _Everything()
    return Server(
        lambda request: None,
        everything,
        everything,
        UpstreamForwarder(config),
        context=context,
        tracer=RequestTracer(write, node=node),
    )
