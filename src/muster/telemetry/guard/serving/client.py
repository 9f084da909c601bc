"""Sends requests to Prometheus on connections that are used again, each request once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from muster.kube.http1 import heads
from muster.kube.http1.connection import NotConnected, Response, Unanswered, UpstreamConnection
from muster.kube.http1.pool import Pool
from muster.telemetry.guard.serving.failure import Failure

_SWITCHED: Final = 101


class Answer:
    """The head of an answer, and its body as it arrives. Close it in any case.

    Attributes:
        status: of HTTP.
        headers: in the order in which they came.
        length: bytes of the body, if they are known.
    """

    __slots__ = ("_client", "_connection", "_response", "headers", "length", "status")

    def __init__(self, client: Client, connection: UpstreamConnection, response: Response) -> None:
        self._client = client
        self._connection: UpstreamConnection | None = connection
        self._response = response
        self.status = response.status
        self.headers = response.headers
        self.length = response.length

    @property
    def here(self) -> bool:
        """Whether all of the answer is here, or is read."""
        return self._response.body.complete

    async def read(self, stall_s: float) -> bytes:
        """Return the bytes that arrived, not decompressed; none at the end.

        Args:
            stall_s: how long to wait for some.

        Raises:
            Failure: the body broke off, or did not come in time.
        """
        body = self._response.body
        try:
            if body.waiting:
                async with asyncio.timeout(stall_s):
                    return await body.read()
            return await body.read()
        except TimeoutError:
            raise Failure("timeout", 504, f"Prometheus sent nothing for {stall_s:g} s in an answer") from None
        except ConnectionError as error:
            raise Failure("broken", 502, f"Prometheus' answer broke off: {error}") from error

    def close(self) -> None:
        """Keep the connection if all of the answer came; else close it, and Prometheus stops the request."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._client.end(connection, whole=self._response.body.complete)


class Client:
    """Sends requests. It follows no redirects, keeps no cookies, and sends nothing a second time.

    Args:
        pool: connections to Prometheus.
        connections_max: requests at once. More wait.
    """

    def __init__(self, pool: Pool, connections_max: int) -> None:
        self._pool = pool
        self._places = asyncio.Semaphore(connections_max)

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()

    async def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Send a request and wait for the head of its answer.

        Args:
            method: GET or POST.
            target: path and query, encoded.
            headers: all but Host and Content-Length.
            body: of a POST.

        Raises:
            Failure: there was no connection, or no answer that is HTTP.
        """
        lines = [("Host", self._pool.authority), *((name, _latin(value)) for name, value in headers.items())]
        if method == "POST":
            lines.append(("Content-Length", str(len(body))))
        head = heads.request_head(method, target, lines)
        await self._places.acquire()
        connection: UpstreamConnection | None = None
        response: Response | None = None
        try:
            connection = await self._pool.take()
            connection.begin(head + body, head_only=False)
            response = await connection.response()
            while response.status < 200 and response.status != _SWITCHED:
                response = await connection.response()
        except NotConnected as error:
            raise Failure("unreachable", 502, "Prometheus cannot be reached") from error
        except Unanswered as error:
            # Another try could be what breaks Prometheus once more.
            raise Failure("broken", 502, f"Prometheus gave no answer: {error}") from error
        finally:
            if connection is None:
                self._places.release()
            elif response is None or response.status < 200:
                self.end(connection, whole=False)
        if response.status == _SWITCHED:
            raise Failure("broken", 502, "Prometheus' answer is not valid HTTP: it switched to another protocol")
        return Answer(self, connection, response)

    def end(self, connection: UpstreamConnection, *, whole: bool) -> None:
        """Take a connection back after a request. `whole`: all of its answer came."""
        self._places.release()
        connection.reusable = connection.reusable and whole
        self._pool.give_back(connection)


def _latin(value: str) -> str:
    """Return the bytes that the client sent, which the server decoded as UTF-8, in the form that heads are written."""
    return value if value.isascii() else value.encode("utf-8", "surrogateescape").decode("latin-1")
