"""One of the two HTTPS connections to the controller; kept open, and reconnected when lost."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from typing import Any

from ..settings import Settings

CONNECT_S = 10.0
HANDSHAKE_S = 30.0  # long, as thousands of supervisors may start at once; a retry would cost another handshake
ANSWER_S = 60.0  # timeout of an answer, longer than the controller's longest poll
# TCP keep-alive: a lost machine of the controller is detected within 15 s
KEEP_ALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 15_000),
)


class Refused(Exception):
    """The controller answered, but not with a directive."""

    def __init__(self, status: int, retry_after: str | None, message: str) -> None:
        super().__init__(f"HTTP {status} {message[:200]}")
        self.retry_after_s = float(retry_after) if retry_after is not None and retry_after.isdigit() else None


class _Connection(http.client.HTTPSConnection):
    """HTTPS that resumes the TLS session of an earlier connection: no signature, no certificates."""

    def __init__(self, host: str, port: int, tls: ssl.SSLContext, session: ssl.SSLSession | None) -> None:
        super().__init__(host, port, timeout=CONNECT_S, context=tls)
        self._tls, self._session = tls, session

    def connect(self) -> None:
        http.client.HTTPConnection.connect(self)
        for level, option, value in KEEP_ALIVE:
            self.sock.setsockopt(level, option, value)
        self.sock.settimeout(HANDSHAKE_S)
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host, session=self._session)


class Sessions:
    """The TLS session that all connections to one controller resume."""

    newest: ssl.SSLSession | None = None


class Lane:
    """One connection that carries one request at a time; used by one thread."""

    def __init__(self, settings: Settings, sessions: Sessions) -> None:
        self._settings, self._sessions = settings, sessions
        self._connection: _Connection | None = None

    @property
    def open(self) -> bool:
        """Returns whether the next request can use the existing connection."""
        return self._connection is not None

    def ask(self, body: dict[str, Any], within_s: float) -> dict[str, Any]:
        """Send the body and return the directive.

        After Refused, OSError, HTTPException or ValueError the lane is closed.
        """
        try:
            return self._ask(body, within_s + ANSWER_S)
        except BaseException:
            self.close()
            raise

    def _ask(self, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        url = self._settings.url
        if self._connection is None:
            self._connection = _Connection(
                url.hostname or "", url.port or 443, self._settings.tls, self._sessions.newest
            )
            self._connection.connect()
        with open(self._settings.token_file, encoding="ascii") as file:
            token = file.read().strip()
        connection = self._connection
        connection.sock.settimeout(timeout_s)
        headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
        connection.request("POST", url.path.rstrip("/") + "/v1/supervise", json.dumps(body).encode(), headers)
        response = connection.getresponse()
        data = response.read(4 << 20)
        if isinstance(connection.sock, ssl.SSLSocket):
            self._sessions.newest = connection.sock.session
        else:  # the server closes the connection
            self._connection = None
        try:
            answer = json.loads(data or b"{}")
        except ValueError:
            answer = {"message": data[:200].decode("utf-8", "replace")}
        if not isinstance(answer, dict):
            answer = {}
        if response.status != 200 or not isinstance(answer.get("revision"), int):
            retry_after = response.headers.get("Retry-After")
            raise Refused(response.status, retry_after, str(answer.get("message", "")))
        return answer

    def close(self) -> None:
        """End the connection; the next request makes another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
