"""The long poll to the controller; its format is in docs/dev/ARCHITECTURE.md, section Supervisor protocol."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
import time
from typing import Any, Callable

from .basics import log
from .settings import Settings

PROTOCOL = 1
CONNECT_S = 10.0


class ControllerLink(threading.Thread):
    """The long poll: `report()` replaces what is reported and cuts a waiting poll short.

    Directives go to `on_directive`. It retries for ever: ranks run whether the controller is there or not.
    """

    def __init__(self, settings: Settings, on_directive: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(name="controller-link", daemon=True)
        self._settings, self._on_directive = settings, on_directive
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._cut = False
        self._body: dict[str, Any] = {}
        self._waiting: socket.socket | None = None
        self._connection: http.client.HTTPSConnection | None = None
        self._revision, self._poll_s = 0, 20.0
        self._failures, self._complained_at = 0, float("-inf")
        self._answered = False

    @property
    def in_contact(self) -> bool:
        """Whether the last request was answered with a directive."""
        return self._answered and self._failures == 0

    def report(self, body: dict[str, Any]) -> None:
        """Say this from now on, beginning at once."""
        with self._lock:
            self._body = body
            self._changed.set()
            if self._waiting is not None:
                self._cut = True
                with contextlib.suppress(OSError):  # below TLS: wakes the reader, whose the TLS object is
                    socket.socket.shutdown(self._waiting, socket.SHUT_RDWR)

    def run(self) -> None:
        """Poll for ever."""
        while True:
            reused = self._connection is not None
            try:
                status, retry_after, answer = self._poll()
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._disconnect()
                if self._cut:  # by report()
                    self._cut = False
                elif not reused:  # else an idle connection was closed: a fresh one may do
                    self._pause(None, f"{type(error).__name__}: {error}")
                continue
            if status == 200 and isinstance(answer.get("revision"), int):
                if self._failures:
                    log("the controller answers again")
                self._failures, self._complained_at = 0, float("-inf")
                self._revision, self._answered = answer["revision"], True
                poll_s = answer.get("pollS")
                self._poll_s = min(max(float(poll_s), 1.0), 300.0) if isinstance(poll_s, (int, float)) else 20.0
                self._on_directive(answer)
            else:
                self._disconnect()  # the next connection may reach the replica that leads
                self._pause(retry_after, f"HTTP {status} {str(answer.get('message', ''))[:200]}")

    def _poll(self) -> tuple[int, str | None, dict[str, Any]]:
        url = self._settings.url
        if self._connection is None:
            connection = http.client.HTTPSConnection(
                url.hostname or "", url.port or 443, timeout=CONNECT_S, context=self._settings.tls
            )
            connection.connect()
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            self._connection = connection
        with open(self._settings.token_file, encoding="ascii") as file:
            token = file.read().strip()
        connection = self._connection
        with self._lock:
            self._changed.clear()
            self._cut = False
            body = json.dumps(dict(self._body, protocol=PROTOCOL, revision=self._revision)).encode()
            self._waiting = connection.sock
        try:
            connection.sock.settimeout(self._poll_s + 10.0)
            headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
            connection.request("POST", url.path.rstrip("/") + "/v1/supervise", body, headers)
            response = connection.getresponse()
            data = response.read(4 << 20)
            try:
                answer = json.loads(data or b"{}")
            except ValueError:
                answer = {"message": data[:200].decode("utf-8", "replace")}
            return response.status, response.headers.get("Retry-After"), answer if isinstance(answer, dict) else {}
        finally:
            with self._lock:
                self._waiting = None

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _pause(self, retry_after: str | None, why: str) -> None:
        self._failures += 1
        delay = min(15.0, 0.25 * 2.0 ** min(self._failures, 6))
        if retry_after is not None and retry_after.isdigit():
            delay = min(max(float(retry_after), 0.2), 30.0)
        if self._failures > 1 and time.monotonic() - self._complained_at > 60:
            self._complained_at = time.monotonic()
            log(f"no directive from the controller ({why}); ranks go on, trying again")
        self._changed.wait(delay * random.uniform(0.5, 1.0))  # a change is worth one try at once
        self._changed.clear()
