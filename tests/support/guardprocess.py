"""`muster guard` as a process, and requests to it without code of ours."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import ssl
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from muster.controlplane.children import Child
from muster.controlplane.ports import free_port
from tests.support.musterprogram import MUSTER
from tests.support.waiting import eventually

QUERY = "/api/v1/query?query="


@dataclass
class Guard:
    """A running guard.

    Attributes:
        port: for clients, on 127.0.0.1.
        metrics_port: of /metrics and /readyz.
        child: the process.
        tls: whether it serves TLS.
    """

    port: int
    metrics_port: int
    child: Child
    tls: bool

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def ready(self) -> bool:
        assert self.child.exit_code is None, self.child.log_tail()
        with contextlib.suppress(OSError), self._page("/readyz") as answer:
            return bool(answer.status == 200)
        return False

    def metrics(self) -> str:
        with self._page("/metrics") as answer:
            return str(answer.read().decode())

    def _page(self, path: str) -> Any:
        return urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=10)

    def get(
        self, path: str, headers: Mapping[str, str] | None = None, context: ssl.SSLContext | None = None
    ) -> tuple[int, Any]:
        """Return status and JSON of an answer. `context` has the authorities and the client's certificate, for TLS."""
        if self.tls:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=30, context=context
            )
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", path, headers=dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def query(
        self, expression: str, headers: Mapping[str, str] | None = None, context: ssl.SSLContext | None = None
    ) -> tuple[int, Any]:
        return self.get(QUERY + quote(expression), headers, context)


@contextlib.contextmanager
def running(config: Path, log: Path, arguments: Sequence[str] = (), *, tls: bool = False) -> Iterator[Guard]:
    """Start a guard with this configuration, wait until it is ready, and end it."""
    port, metrics_port = free_port(), free_port()
    listen = [f"--listen=127.0.0.1:{port}", f"--metrics-listen=127.0.0.1:{metrics_port}"]
    child = Child([MUSTER, "guard", f"--config={config}", *listen, *arguments], log, dict(os.environ))
    guard = Guard(port, metrics_port, child, tls)
    try:
        eventually("the guard is ready", guard.ready)
        yield guard
    finally:
        child.stop(grace_s=30)
