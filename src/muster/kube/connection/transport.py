"""Sends one request to the API server over HTTP: connection, TLS, credentials, and errors that say what to change."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import ssl
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
from yarl import URL

from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.credentials import ClientCertificate
from muster.kube.connection.sockets import Sockets
from muster.kube.errors import ApiError, ServerTimeout, Unauthorized, Unavailable, error_from

CONNECT_TIMEOUT_S = 10.0
HEARTBEAT_S = 20.0
"""Interval of pings on a WebSocket. A lost machine does not answer them, and the session ends."""
_READ_BUFFER_BYTES = 1 << 20

Params = Mapping[str, str]
Headers = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer, read completely."""

    status: int
    body: bytes
    retry_after_s: float | None = None

    def error(self) -> ApiError:
        """Convert this answer to an ApiError."""
        return error_from(self.status, self.body, retry_after_s=self.retry_after_s)


class NotSent(Unavailable):
    """No connection could be made, so the server has not seen the request."""


class NotLeading(NotSent):
    """This process no longer leads, so the write was not sent. A retry does not help."""

    def __init__(self, request: str) -> None:
        super().__init__(0, "NotLeading", f"{request} was not sent: this process no longer leads")


Fence = Callable[[], None]
"""Called immediately before a request is sent. Raises NotLeading if the request must not be sent."""


class _Refused(Exception):
    """The server refused the handshake of a WebSocket."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


async def _read_refusal(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Read the body of a refused WebSocket handshake. aiohttp's own error has only the status."""
    response = await handler(request)
    if response.status == 101:
        return response
    async with asyncio.timeout(CONNECT_TIMEOUT_S), response:
        raise _Refused(Answer(response.status, await response.read(), _retry_after_s(response.headers)))


class Transport(Protocol):
    """Sends requests to an API server; simulated clusters have their own implementation."""

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params,
        body: bytes | None,
        headers: Headers,
        timeout_s: float,
        fence: Fence | None = None,
    ) -> Answer:
        """Send one request if `fence` allows it. Raises NotSent, Unavailable or ServerTimeout if no answer arrives."""

    def chunks(
        self, path: str, *, params: Params, stall_s: float, headers: Headers | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """GET a stream.

        Raises ApiError if refused, Unavailable if it breaks, ServerTimeout after `stall_s` without data.
        """

    def stream(self, method: str, path: str, *, params: Params) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Open a response of unknown length, such as a log."""

    def websocket(
        self, path: str, *, params: Params, protocols: Sequence[str]
    ) -> AbstractAsyncContextManager[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket, such as exec."""

    async def close(self) -> None:
        """Close all connections."""


class HttpTransport:
    """Requests over HTTP/1.1 with keep-alive.

    Args:
        config: address and credentials.
        user_agent: User-Agent header.
        connections: most requests in flight. Watches and streams are not counted, so they never block requests.
    """

    def __init__(self, config: ClusterConfig, *, user_agent: str, connections: int) -> None:
        self._config = config
        self._user_agent = user_agent
        self._slots = asyncio.Semaphore(connections)
        self._session: aiohttp.ClientSession | None = None
        self._sockets = Sockets()
        self._tls: tuple[ClientCertificate | None, ssl.SSLContext | None] | None = None
        self._proxy = config.proxy_url or _proxy_from_environment(config.server)

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
            await self._sockets.cut()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params,
        body: bytes | None,
        headers: Headers,
        timeout_s: float,
        fence: Fence | None = None,
    ) -> Answer:
        """Send one request, and once more with fresh credentials after a 401."""
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        async with self._slots:
            for attempt in (0, 1):
                authorization = await self._config.credentials.authorization()
                if fence is not None:
                    fence()  # check here: waiting for a connection and for credentials took time
                try:
                    async with self._open(method, path, params, body, headers, authorization, timeout) as response:
                        answer = Answer(response.status, await response.read(), _retry_after_s(response.headers))
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    raise self._lost(error, method, path, timeout_s) from error
                if answer.status != 401:
                    return answer
                if attempt or not self._config.credentials.invalidate(authorization):
                    break
        raise self._unauthorized(answer)

    @asynccontextmanager
    async def chunks(
        self, path: str, *, params: Params, stall_s: float, headers: Headers | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """GET a stream as it arrives."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=stall_s)
        async with self._checked("GET", path, params, timeout, headers) as response:

            async def read() -> AsyncIterator[bytes]:
                try:
                    async for chunk in response.content.iter_any():
                        yield chunk
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    raise self._lost(error, "WATCH", path, stall_s) from error

            yield read()

    @asynccontextmanager
    async def stream(self, method: str, path: str, *, params: Params) -> AsyncIterator[aiohttp.ClientResponse]:
        """Open a response of unknown length; the caller reads it."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S)
        async with self._checked(method, path, params, timeout) as response:
            yield response

    @asynccontextmanager
    async def websocket(
        self, path: str, *, params: Params, protocols: Sequence[str]
    ) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket."""
        credentials = self._config.credentials
        for attempt in (0, 1):
            authorization = await credentials.authorization()
            opening = aiohttp.ClientSession(
                connector=self._live_session().connector,
                connector_owner=False,
                middlewares=(_read_refusal,),
            )
            try:
                socket = await opening.ws_connect(
                    self._url(path, params),
                    headers=self._headers({}, authorization),
                    protocols=tuple(protocols),
                    ssl=self._ssl(),
                    server_hostname=self._config.tls_server_name or None,
                    proxy=self._proxy or None,
                    max_msg_size=0,
                    heartbeat=HEARTBEAT_S,
                )
                break
            except _Refused as refused:
                answer = refused.answer
                if answer.status == 401 and not attempt and credentials.invalidate(authorization):
                    continue
                raise (self._unauthorized(answer) if answer.status == 401 else answer.error()) from None
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise self._lost(error, "GET", path, CONNECT_TIMEOUT_S) from error
            finally:
                await opening.close()  # the socket stays open, because the connection no longer belongs to the session
        async with socket:
            yield socket

    @asynccontextmanager
    async def _checked(
        self, method: str, path: str, params: Params, timeout: aiohttp.ClientTimeout, headers: Headers | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        credentials = self._config.credentials
        for attempt in (0, 1):
            authorization = await credentials.authorization()
            try:
                response = await self._open(method, path, params, None, headers or {}, authorization, timeout)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise self._lost(error, method, path, CONNECT_TIMEOUT_S) from error
            try:
                if response.status < 400:
                    yield response
                    return
                answer = Answer(response.status, await response.read(), _retry_after_s(response.headers))
            finally:
                response.close()
            if answer.status != 401:
                raise answer.error()
            if attempt or not credentials.invalidate(authorization):
                raise self._unauthorized(answer)

    def _open(
        self,
        method: str,
        path: str,
        params: Params,
        body: bytes | None,
        headers: Headers,
        authorization: str,
        timeout: aiohttp.ClientTimeout,
    ) -> Any:
        return self._live_session().request(
            method,
            self._url(path, params),
            data=body,
            headers=self._headers(headers, authorization),
            timeout=timeout,
            ssl=self._ssl(),
            server_hostname=self._config.tls_server_name or None,
            proxy=self._proxy or None,
            allow_redirects=False,
        )

    def _url(self, path: str, params: Params) -> URL:
        url = URL(self._config.server + path)
        return url.with_query(params) if params else url

    def _headers(self, headers: Headers, authorization: str) -> dict[str, str]:
        all_headers = {"Accept": "application/json", "User-Agent": self._user_agent, **headers}
        if authorization:
            all_headers["Authorization"] = authorization
        return all_headers

    def _live_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=60, socket_factory=self._sockets.make),
                # No compression: decompressing would use more of our single thread than the network saves.
                headers={"Accept-Encoding": "identity"},
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=_READ_BUFFER_BYTES,
            )
        return self._session

    def _ssl(self) -> ssl.SSLContext | bool:
        certificate = self._config.credentials.client_certificate()
        if self._tls is None or self._tls[0] is not certificate:
            context = (
                self._config.ssl_context(certificate.certificate, certificate.key)
                if certificate is not None
                else self._config.ssl_context()
            )
            self._tls = (certificate, context)
        return self._tls[1] or True

    def _unauthorized(self, answer: Answer) -> Unauthorized:
        of = f" of context {self._config.context!r}" if self._config.context else ""
        said = answer.error()
        return Unauthorized(
            401,
            said.reason or "Unauthorized",
            f"{self._config.server} does not accept the credentials{of} ({said.message}): "
            "they are missing, wrong or expired; log in again or renew them",
            said.details,
        )

    def _lost(self, error: BaseException, method: str, path: str, timeout_s: float) -> ApiError:
        server = self._config.server
        if isinstance(error, ssl.SSLCertVerificationError | aiohttp.ClientConnectorCertificateError):
            why = getattr(getattr(error, "certificate_error", error), "verify_message", "") or str(error)
            return NotSent(
                0,
                "TLSFailure",
                f"TLS with {server} failed: {why}; check certificate-authority and server in the kubeconfig",
            )
        if isinstance(error, ssl.SSLError | aiohttp.ClientSSLError):
            return NotSent(0, "TLSFailure", f"TLS with {server} failed: {error}")
        if isinstance(error, aiohttp.ConnectionTimeoutError):
            return NotSent(0, "ConnectTimeout", f"no connection to {server} within {CONNECT_TIMEOUT_S:.0f} s")
        if isinstance(error, aiohttp.ClientConnectorDNSError):
            return NotSent(0, "UnknownHost", f"the host of {server} is not known: {error.os_error}")
        if isinstance(error, aiohttp.ClientConnectorError):
            if error.os_error.errno == errno.ECONNREFUSED:
                return NotSent(0, "ConnectionRefused", f"connection to {server} refused; is the cluster running?")
            return NotSent(0, "ConnectFailed", f"no connection to {server}: {error.os_error}")
        if isinstance(error, TimeoutError):
            return ServerTimeout(0, "Timeout", f"{method} {path}: no answer from {server} within {timeout_s:g} s")
        return Unavailable(
            0, "ConnectionLost", f"{method} {path}: connection to {server} lost: {str(error) or type(error).__name__}"
        )


def _retry_after_s(headers: Mapping[str, str]) -> float | None:
    value = headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdigit() else None


def _proxy_from_environment(server: str) -> str:
    """Return the proxy from the usual environment variables; "" for this machine itself, as in Go's net/http."""
    url = URL(server)
    host = url.host or ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if local or urllib.request.proxy_bypass(host):
        return ""
    return urllib.request.getproxies().get(url.scheme, "")
