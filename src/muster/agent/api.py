"""A small API server client for agents: a few requests a minute, with as little memory as possible.

`kube.client` would take 15 MB more on every node: agents need no watches, no sessions and no metrics library. Requests
are sent one at a time, in a thread that is abandoned if it does not return. Proxies are not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Callable
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from muster.agent.aside import Aside, StillBusyError
from muster.kube.connection.config import ClusterConfig
from muster.kube.errors import ApiError, ServerTimeout, Unavailable, error_from

JSON: Final = "application/json"
JSON_PATCH: Final = "application/json-patch+json"
ANSWER_BYTES_MAX: Final = 4 << 20


class AgentApi:
    """Sends requests to one API server with the configured credentials.

    Args:
        config: the cluster.
        user_agent: User-Agent header.
        timeout_s: the limit of one whole request.
        again: reads the configuration again if the server's certificate is not trusted: a cluster may change its
            certificate authority, and a pod's `ca.crt` is updated. May raise ConfigError.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        user_agent: str,
        timeout_s: float = 10.0,
        again: Callable[[], ClusterConfig] | None = None,
    ) -> None:
        self._config = config
        self._again = again
        self._user_agent = user_agent
        self._timeout_s = timeout_s
        self._aside = Aside("api")
        self._context: ssl.SSLContext | None = None
        self._connection: http.client.HTTPConnection | None = None

    async def request(self, method: str, path: str, body: bytes | None = None, content_type: str = JSON) -> bytes:
        """Send one request. After a 401, send it once more with fresh credentials.

        Raises:
            ApiError: it was refused or not answered (see muster.kube.errors).
            ConfigError: usable credentials are missing.
        """
        credentials = self._config.credentials
        for attempt in (0, 1):
            authorization = await credentials.authorization()
            headers = {"Accept": JSON, "User-Agent": self._user_agent}
            if authorization:
                headers["Authorization"] = authorization
            if body is not None:
                headers["Content-Type"] = content_type
            status, retry_after_s, answer = await self._send(method, path, body, headers)
            if status < HTTPStatus.MULTIPLE_CHOICES:
                return answer
            again = status == HTTPStatus.UNAUTHORIZED and not attempt and credentials.invalidate(authorization)
            if not again:
                break
        raise error_from(status, answer, retry_after_s=retry_after_s)

    async def authorization(self) -> str:
        """Return the Authorization header of requests. Raises ConfigError without credentials."""
        return await self._config.credentials.authorization()

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def _send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, float | None, bytes]:
        exchange = _Exchange(self._connect, self._connection)
        self._connection = None
        target = urlsplit(self._config.server).path + path
        try:
            async with asyncio.timeout(self._timeout_s):
                answer = await self._aside.run(exchange.run, method, target, body, headers)
        except TimeoutError as error:
            raise ServerTimeout(0, "Timeout", f"no answer within {self._timeout_s:g} s") from error
        except StillBusyError as error:
            raise ServerTimeout(0, "Timeout", "an earlier request has not come back") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, ssl.SSLCertVerificationError) and self._again is not None:
                self._config, self._context = self._again(), None
            message = str(error) or type(error).__name__
            raise Unavailable(0, "Unavailable", f"{self._config.server}: {message}") from error
        finally:
            self._connection = exchange.leave()
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        url = urlsplit(self._config.server)
        host = url.hostname or ""
        if url.scheme != "https":
            opened = http.client.HTTPConnection(host, url.port or 80, timeout=self._timeout_s)
            opened.connect()
            return opened
        if self._context is None:
            self._context = self._config.ssl_context()
        assert self._context is not None
        connection = http.client.HTTPSConnection(host, url.port or 443, timeout=self._timeout_s, context=self._context)
        plain = socket.create_connection((host, url.port or 443), self._timeout_s)
        try:
            connection.sock = self._context.wrap_socket(plain, server_hostname=self._config.tls_server_name or host)
        except BaseException:
            plain.close()
            raise
        return connection


class _Exchange:
    """One request and its answer, in a thread that may be abandoned: it then closes what it opened."""

    def __init__(
        self, connect: Callable[[], http.client.HTTPConnection], kept: http.client.HTTPConnection | None
    ) -> None:
        self._connect = connect
        self._connection = kept
        self._fresh = kept is None
        self._lock = threading.Lock()
        self._busy = self._left = False

    def run(
        self, method: str, target: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, float | None, bytes]:
        """Send it and read the answer. Blocking."""
        with self._lock:
            self._stop_if_left()
            self._busy = True
        done = False
        try:
            try:
                answer = self._once(method, target, body, headers)
            except (ConnectionError, http.client.RemoteDisconnected, ssl.SSLEOFError):
                if self._fresh:
                    raise
                self._close()  # the server closes idle connections; all our requests may be sent twice
                answer = self._once(method, target, body, headers)
            done = True
            return answer
        finally:
            with self._lock:
                self._busy = False
                if self._left or not done:
                    self._close()

    def leave(self) -> http.client.HTTPConnection | None:
        """Return the connection if it can be used again. A request that still runs is abandoned."""
        with self._lock:
            self._left = True
            if not self._busy:
                return self._connection
            sock = self._connection.sock if self._connection is not None else None
            if (
                sock is not None
            ):  # otherwise a server that sends a byte from time to time would block the thread for ever
                with contextlib.suppress(OSError):
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
            return None

    def _once(
        self, method: str, target: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, float | None, bytes]:
        if self._connection is None or self._connection.sock is None:
            made = self._connect()
            with self._lock:
                self._connection, self._fresh = made, True
                self._stop_if_left()  # `leave` found no connection to shut down
        self._connection.request(method, target, body, headers)
        response = self._connection.getresponse()
        try:
            answer = response.read(ANSWER_BYTES_MAX)
            seconds = response.getheader("Retry-After", "")
            return response.status, float(seconds) if seconds.isascii() and seconds.isdigit() else None, answer
        finally:
            if not response.isclosed():
                response.close()
                self._close()

    def _stop_if_left(self) -> None:
        if self._left:
            raise ConnectionAbortedError("the request was abandoned")

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def retry_after_s(error: ApiError) -> float | None:
    """Return how long the server asked to wait, at most ten minutes, so that an agent does not stay silent."""
    return None if error.retry_after_s is None else min(error.retry_after_s, 600.0)
