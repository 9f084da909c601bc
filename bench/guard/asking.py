"""Sending requests as Grafana's back end does, and reading answers without keeping them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp

from bench.guard.users import Request

DEADLINE_S = 30.0
"""Grafana's proxies give up after this time by default (`dataproxy.timeout`)."""
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Answer:
    """What became of a request.

    Attributes:
        status: of HTTP; 0 if the connection failed or the deadline passed.
        seconds: until the last byte.
        size_bytes: of the body, without compression.
        head: the begin of the body.
    """

    status: int
    seconds: float
    size_bytes: int
    head: bytes = b""

    @property
    def served(self) -> bool:
        """Whether it has an answer."""
        return self.status == 200

    @property
    def refused(self) -> bool:
        """Whether the request was refused: the client's error, not one of the server."""
        return 400 <= self.status < 500


async def send(
    session: aiohttp.ClientSession, url: str, request: Request, end_s: float, headers: Mapping[str, str]
) -> Answer:
    """Send a request: queries as POST, all else as GET."""
    method = "POST" if request.path.startswith("/api/v1/query") else "GET"
    given = request.timed(end_s)
    panel = {"X-Panel-Id": str(request.panel)} if request.panel else {}
    began, size, head = time.perf_counter(), 0, b""
    try:
        async with session.request(
            method,
            url + request.path,
            params=None if method == "POST" else given,
            data=given if method == "POST" else None,
            headers={**headers, **panel},
        ) as answer:
            async for chunk in answer.content.iter_chunked(_CHUNK):
                head = head or chunk[:500]
                size += len(chunk)
            return Answer(answer.status, time.perf_counter() - began, size, head)
    except (aiohttp.ClientError, TimeoutError, ConnectionError):
        return Answer(0, time.perf_counter() - began, size, head)


def session() -> aiohttp.ClientSession:
    """A session with Grafana's deadline and enough connections."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=DEADLINE_S)
    )
