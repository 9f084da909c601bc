"""Forwards requests to the API server with the caller's own credentials, and streams both ways."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable
from typing import Final

from muster.kube.connection.config import ClusterConfig
from muster.kube.errors import ConfigError
from muster.kube.http1 import heads
from muster.kube.http1.body import Body
from muster.kube.http1.connection import NotConnected, Response, Unanswered, UpstreamConnection
from muster.kube.http1.heads import Header
from muster.kube.http1.pool import Pool, PoolSettings
from muster.readcache.request import Refusal, Request
from muster.readcache.serving.exchange import Exchange
from muster.readcache.serving.settings import ServingSettings

_REPEATABLE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Go's transport repeats these after a stale connection."""

_RETRY_S: Final = 1
_HEAD_BYTES: Final = 1 << 20  # of a response
_SPOOFABLE: Final = ("x-remote-", "x-forwarded-")
_REPLACED: Final = frozenset({"host", "content-length", "forwarded", "x-real-ip"})


class UpstreamForwarder:
    """Forwards requests. It adds no credentials, and removes headers by which a front proxy names users.

    Args:
        config: the API server. Its credentials are not used.
        settings: limits of connections to it.

    Raises:
        ConfigError: the API server can only be reached through a proxy.
    """

    def __init__(self, config: ClusterConfig, settings: ServingSettings | None = None) -> None:
        if config.proxy_url:
            raise ConfigError(
                f"the read cache cannot forward through the proxy {config.proxy_url}: "
                "give it a kubeconfig without proxy-url"
            )
        own = dataclasses.replace(config, client_certificate=b"", client_key=b"")
        self._server = config.server
        settings = settings or ServingSettings()
        limits = PoolSettings(
            connect_s=settings.upstream_connect_s,
            idle_s=settings.upstream_idle_s,
            idle_max=settings.upstream_idle_max,
            full_bytes=settings.full_bytes,
            head_bytes_max=_HEAD_BYTES,
            waiting_bytes_max=settings.waiting_bytes_max,
        )
        self._pool = Pool(config.server, own.ssl_context(), limits, server_name=config.tls_server_name)

    def close(self) -> None:
        """Close all connections to the API server."""
        self._pool.close()

    async def forward(self, exchange: Exchange, reason: str) -> None:
        """Send the request on, and its response back.

        Args:
            exchange: whose response has not begun.
            reason: why the cache does not answer, for refusals.

        Raises:
            Refusal: the request cannot be forwarded, or the API server did not answer.
            ConnectionError: the response broke off.
        """
        request = exchange.request
        if request.method == "CONNECT":
            raise Refusal(405, "MethodNotAllowed", "the read cache does not serve CONNECT")
        if request.certificate is not None and not request.header("authorization"):
            raise self._certificate_alone(reason)
        exchange.forwarded()
        repeatable = request.method in _REPEATABLE and not exchange.has_body and not exchange.upgrade
        try:
            connection = await self._pool.take()
            stale = connection.used
            try:
                await self._pass(exchange, connection)
            except Unanswered:
                if not (stale and repeatable):
                    raise
                await self._pass(exchange, await self._pool.take(fresh=True))
        except NotConnected as error:
            raise Refusal(
                503,
                "ServiceUnavailable",
                f"the read cache cannot reach the API server at {self._server}: {error}",
                retry_after_s=_RETRY_S,
            ) from None
        except Unanswered as error:
            if request.method in _REPEATABLE:
                message = f"the API server broke off the connection: {error}"
                raise Refusal(503, "ServiceUnavailable", message, retry_after_s=_RETRY_S) from None
            message = f"the API server broke off the connection, and may have done what was asked: {error}"
            raise Refusal(502, "BadGateway", message) from None

    def _certificate_alone(self, reason: str) -> Refusal:
        return Refusal(
            403,
            "Forbidden",
            f"the read cache does not answer this request ({reason}), and cannot pass on a client certificate: "
            f"send a bearer token, or send the request to the API server at {self._server}",
        )

    async def _pass(self, exchange: Exchange, connection: UpstreamConnection) -> None:
        request = exchange.request
        connection.used = True
        response: Response | None = None
        upload: asyncio.Task[bool] | None = None
        try:
            head = heads.request_head(request.method, request.target, self._headers(exchange))
            connection.begin(head, head_only=request.method == "HEAD")
            if exchange.has_body:
                upload = asyncio.create_task(_upload(exchange, connection))
            response = await connection.response()
            while response.status < 200 and response.status != 101:
                exchange.inform(response.status, heads.end_to_end(response.headers))
                response = await connection.response()
            if response.status == 101:
                await _switch(exchange, connection, response)
            else:
                await _download(exchange, response)
        finally:
            # The server would take the next request for the rest of a body.
            sent = exchange.body.complete if upload is None else upload.done() and upload.result()
            if upload is not None:
                upload.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await upload
            whole = response is not None and response.body.complete and sent
            connection.reusable = connection.reusable and whole
            self._pool.give_back(connection)

    def _headers(self, exchange: Exchange) -> list[Header]:
        request = exchange.request
        headers = [("Host", self._pool.authority)]
        headers += [
            (name, value)
            for name, value in heads.end_to_end(request.headers)
            if name not in _REPLACED and not name.startswith(_SPOOFABLE)
        ]
        if request.peer:
            headers.append(("X-Forwarded-For", request.peer))
        if exchange.upgrade:
            headers += [("Connection", "Upgrade"), ("Upgrade", request.header("upgrade"))]
        if _is_chunked(request):
            headers.append(("Transfer-Encoding", "chunked"))
        elif request.header("content-length"):
            headers.append(("Content-Length", request.header("content-length")))
        return headers


def _is_chunked(request: Request) -> bool:
    return bool(request.header("transfer-encoding"))


async def _upload(exchange: Exchange, connection: UpstreamConnection) -> bool:
    """Send the body of the request. Returns whether all of it was; else the response or its absence says so."""
    chunked = _is_chunked(exchange.request)
    try:
        while data := await exchange.body.read():
            connection.channel.write(heads.chunk(data) if chunked else data)
            await connection.room()
        if chunked:
            connection.channel.write(heads.last_chunk(exchange.body.trailers))
    except ConnectionError:
        return False
    return True


async def _download(exchange: Exchange, response: Response) -> None:
    headers = [header for header in heads.end_to_end(response.headers) if header[0].lower() != "content-length"]
    exchange.begin(response.status, headers, length=response.length)
    while data := await response.body.read():
        exchange.send(data)
        await exchange.room()
    exchange.finish(response.body.trailers)


async def _switch(exchange: Exchange, connection: UpstreamConnection, response: Response) -> None:
    """Let both sides speak another protocol, until one of them ends it."""
    from_client, from_server = exchange.tunnel, connection.tunnel
    if from_client is None or from_server is None:
        raise ConnectionError("the API server switched to a protocol that was not asked for")
    names = [value for name, value in response.headers if name.lower() == "upgrade"]
    headers = [*heads.end_to_end(response.headers), ("Connection", "Upgrade"), *(("Upgrade", name) for name in names)]
    exchange.switch(headers)
    pumps = [
        asyncio.create_task(_pump(from_client, connection.channel.write, connection.room)),
        asyncio.create_task(_pump(from_server, exchange.send, exchange.room)),
    ]
    try:
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
    exchange.finish()


async def _pump(source: Body, write: Callable[[bytes], None], room: Callable[[], Awaitable[None]]) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await source.read():
            write(data)
            await room()
