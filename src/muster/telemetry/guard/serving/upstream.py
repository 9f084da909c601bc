"""Sends requests to Prometheus: each once, with a deadline, and without buffering the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Final

from muster.telemetry.guard.query.form import encode_pairs
from muster.telemetry.guard.serving.client import Answer
from muster.telemetry.guard.serving.destination import Destination
from muster.telemetry.guard.serving.failure import Failure
from muster.telemetry.guard.serving.settings import ServingSettings

FORM: Final = "application/x-www-form-urlencoded"


class UpstreamRequest:
    """A request to Prometheus. Two are equal if one answer serves both.

    Args:
        method: GET or POST.
        path: after the prefix of the upstream, with a slash.
        asked: what the client asked, and its limits. What is sent follows from it and from the time.
        parameters: in the query string of a GET, in the form of a POST. They do not count for equality.
        body: of a POST, as the client sent it; None to send the parameters.
        headers: that decide about the answer, such as Accept.
        private_headers: the tenant, and credentials of the caller where they are passed on.
        credentials_key: digest of `private_headers`. Requests with unequal keys never share an answer.
        timeout_s: that Prometheus was given. It does not count for equality.
        max_bytes: greatest answer, as sent; None for no limit.
    """

    __slots__ = (
        "_compared",
        "_hash",
        "body",
        "headers",
        "max_bytes",
        "method",
        "parameters",
        "path",
        "private_headers",
        "timeout_s",
    )

    def __init__(
        self,
        method: str,
        path: str,
        asked: Hashable,
        parameters: tuple[tuple[str, str], ...],
        body: bytes | None,
        headers: tuple[tuple[str, str], ...],
        private_headers: tuple[tuple[str, str], ...],
        credentials_key: bytes,
        timeout_s: float,
        max_bytes: int | None,
    ) -> None:
        self.method = method
        self.path = path
        self.parameters = parameters
        self.body = body
        self.headers = headers
        self.private_headers = private_headers
        self.timeout_s = timeout_s
        self.max_bytes = max_bytes
        self._compared = (method, path, asked, body, headers, private_headers, credentials_key, max_bytes)
        self._hash = hash(self._compared)  # of long texts, and needed several times

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UpstreamRequest) and self._compared == other._compared

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        """Leave out what may be secret."""
        return f"UpstreamRequest({self.method!r}, {self.path!r}, {self.parameters!r})"


class Upstream:
    """Sends the requests of clients to Prometheus.

    Args:
        destination: where it answers.
        settings: deadlines and limits.
    """

    def __init__(self, destination: Destination, settings: ServingSettings) -> None:
        self._destination = destination
        self._settings = settings
        self._client = destination.client(settings.upstream_connections_max, settings.connect_s)

    async def close(self) -> None:
        """Close all connections."""
        self._client.close()

    async def send(self, request: UpstreamRequest) -> Answer:
        """Send a request and return the answer's head. Closing it before the end of the body closes the connection.

        Raises:
            Failure: there was no connection, no answer in time, or an answer that is not HTTP.
        """
        own = self._destination.headers()
        headers = {**own, **dict(request.headers), **dict(request.private_headers)}
        form = request.method == "POST" and request.body is None
        body = request.body or b""
        if form:
            body = encode_pairs(request.parameters).encode()
            headers["Content-Type"] = FORM
        target = self._destination.target(request.path, () if form else request.parameters)
        limit_s = request.timeout_s + self._settings.head_s
        try:
            async with asyncio.timeout(limit_s):
                answer = await self._client.send(request.method, target, headers, body)
        except Failure as failure:
            self._destination.failed(failure)
            raise
        except TimeoutError:
            raise Failure("timeout", 504, f"Prometheus did not answer within {limit_s:g} s") from None
        self._destination.presence.answered(answer.status)
        if answer.status == 401 and "Authorization" in own:
            answer.close()
            raise Failure("broken", 502, "Prometheus does not accept the guard's token; see upstream.tokenFile")
        return answer
