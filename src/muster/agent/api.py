"""Requests to the API server as an agent needs them: a few a minute at most, in as little memory as there can be.

`kube.client` would do it, at 15 MB more on every node: no watches, no sessions and no metrics library are needed here.
One request at a time, in a thread that is left behind where it does not come back; no proxies.
"""

from __future__ import annotations

import asyncio
import http.client
import socket
import ssl
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from muster.agent.aside import Aside, StillBusyError
from muster.kube.config import ClusterConfig
from muster.kube.errors import ApiError, ServerTimeout, Unavailable, error_from

JSON: Final = "application/json"
JSON_PATCH: Final = "application/json-patch+json"
ANSWER_BYTES_MAX: Final = 4 << 20


class AgentApi:
    """Sends requests to one API server, as whoever the configuration says.

    Args:
        config: the cluster.
        user_agent: User-Agent header.
        timeout_s: of one request, all of it.
    """

    def __init__(self, config: ClusterConfig, *, user_agent: str, timeout_s: float = 10.0) -> None:
        self._config = config
        self._user_agent = user_agent
        self._timeout_s = timeout_s
        self._aside = Aside("api")
        self._context: ssl.SSLContext | None = None
        self._connection: http.client.HTTPConnection | None = None

    async def request(self, method: str, path: str, body: bytes | None = None, content_type: str = JSON) -> bytes:
        """Send one request; once more with fresh credentials after a 401.

        Raises:
            ApiError: it was refused, or there is no answer (muster.kube.errors says which).
            ConfigError: there are no usable credentials.
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
        """The Authorization header that requests carry. Raises ConfigError where there are no credentials."""
        return await self._config.credentials.authorization()

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def _send(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, float | None, bytes]:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._aside.run(self._exchange, method, path, body, headers)
        except TimeoutError as error:
            self._connection = None  # whoever was left behind has it; it is closed when that comes back
            raise ServerTimeout(0, "Timeout", f"no answer within {self._timeout_s:g} s") from error
        except StillBusyError as error:
            raise ServerTimeout(0, "Timeout", "an earlier request has not come back") from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.close()
            said = str(error) or type(error).__name__
            raise Unavailable(0, "Unavailable", f"{self._config.server}: {said}") from error

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, float | None, bytes]:
        """Blocking; in the thread."""
        kept = self._connection
        if kept is not None:
            try:
                return self._on(kept, method, path, body, headers)
            except (ConnectionError, http.client.RemoteDisconnected, ssl.SSLEOFError):
                kept.close()  # the server closes connections that nobody uses; all that we send may be sent twice
        self._connection = self._connect()
        return self._on(self._connection, method, path, body, headers)

    def _on(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: bytes | None,
        headers: dict[str, str],
    ) -> tuple[int, float | None, bytes]:
        connection.request(method, urlsplit(self._config.server).path + path, body, headers)
        response = connection.getresponse()
        answer = response.read(ANSWER_BYTES_MAX)
        if not response.isclosed():
            connection.close()
        said = response.getheader("Retry-After", "")
        return response.status, float(said) if said.isascii() and said.isdigit() else None, answer

    def _connect(self) -> http.client.HTTPConnection:
        url = urlsplit(self._config.server)
        host = url.hostname or ""
        if url.scheme != "https":
            return http.client.HTTPConnection(host, url.port or 80, timeout=self._timeout_s)
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


def retry_after_s(error: ApiError) -> float | None:
    """How long the server asked to wait; nothing may keep an agent silent for more than ten minutes."""
    return None if error.retry_after_s is None else min(error.retry_after_s, 600.0)
