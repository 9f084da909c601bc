"""Where Prometheus answers, and how the guard connects to it."""

from __future__ import annotations

import re
import ssl
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlsplit

from muster.kube.http1.pool import Pool, PoolSettings
from muster.telemetry.guard.query.form import encode_pairs
from muster.telemetry.guard.serving.client import Client
from muster.telemetry.guard.serving.failure import Failure
from muster.telemetry.guard.serving.presence import Presence
from muster.telemetry.guard.serving.upstreamfiles import UpstreamFiles
from muster.telemetry.guard.upstream import UpstreamConfig

USER_AGENT: Final = "muster-guard"
_KEPT_S: Final = 30.0
"""Prometheus closes idle connections after 5 minutes (`--web.read-timeout`)."""
_HEAD_BYTES: Final = 32 << 10
_WAITING_BYTES: Final = 4 << 20
"""Of a request, which has less, that wait for Prometheus."""


_PLAIN: Final = re.compile(r"[A-Za-z0-9_.~/-]*")
"""Paths that are encoded as themselves."""


class Destination:
    """Where Prometheus answers, and what each request to it carries.

    Args:
        url: with a prefix if it has one.
        headers: to add.
        files: token and certificates; None without.

    Attributes:
        presence: whether it can be reached.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, files: UpstreamFiles | None = None) -> None:
        self._base = url
        self._prefix = quote(urlsplit(url).path.rstrip("/"), safe="/%:@!$&'()*+,;=~")
        self.presence = Presence(url)
        self.files = files or UpstreamFiles(UpstreamConfig(url))
        self._headers = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **(headers or {})}
        self._pools: list[Pool] = []

    def client(self, connections: int, connect_s: float) -> Client:
        """Make a client for so many requests at once. Create it on the event loop that uses it."""
        limits = PoolSettings(
            connect_s=connect_s,
            idle_s=_KEPT_S,
            idle_max=connections,
            full_bytes=_WAITING_BYTES,
            head_bytes_max=_HEAD_BYTES,
            waiting_bytes_max=_WAITING_BYTES * connections,
        )
        pool = Pool(self._base, self.files.context, limits)
        self._pools.append(pool)
        return Client(pool, connections)

    def follow(self) -> list[Coroutine[Any, Any, None]]:
        """Return the work that reads the files again, and connects with new certificates."""
        return self.files.follow(self._reconnect)

    def target(self, path: str, parameters: Sequence[tuple[str, str]]) -> str:
        """Return the target of a request for a path with parameters, encoded."""
        query = "?" + encode_pairs(parameters) if parameters else ""
        return self._prefix + (path if _PLAIN.fullmatch(path) else quote(path, safe="/")) + query

    def headers(self) -> dict[str, str]:
        """Return the headers of a request, with the guard's credentials."""
        found, authorization = dict(self._headers), self.files.authorization
        if authorization:
            found["Authorization"] = authorization
        return found

    def failed(self, failure: Failure) -> None:
        """Record that there was no answer."""
        if failure.outcome == "unreachable":
            self.presence.lost(str(failure.__cause__))

    def _reconnect(self, context: ssl.SSLContext) -> None:
        for pool in self._pools:
            pool.use(context)


def make_destination(config: UpstreamConfig) -> Destination:
    """Return the configured Prometheus. Raises ConfigError if the token or a certificate cannot be used."""
    return Destination(config.url, config.headers, UpstreamFiles(config))
