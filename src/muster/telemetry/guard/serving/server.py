"""The HTTP server of the guard."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler, _ErrInfo

from muster.telemetry.guard.serving.answering import refusal
from muster.telemetry.guard.serving.failure import Failure
from muster.telemetry.guard.serving.settings import ServingSettings

log = logging.getLogger(__name__)

_HEADERS_MAX: Final = 64
_HEADER_BYTES: Final = 16 << 10
_UNUSED: Final = logging.Logger("unused", logging.CRITICAL + 1)
"""aiohttp writes no access log into a logger that is not enabled."""
_BACKLOG: Final = 1024
_CLOSE_S: Final = 1.0

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class _Connection(RequestHandler):
    """One connection of a client."""

    def data_received(self, data: bytes) -> None:
        """Parse data. Drop what follows an invalid request: aiohttp would keep an error with each piece."""
        if not self._messages or not isinstance(self._messages[-1][0], _ErrInfo):
            super().data_received(data)

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer what is not valid HTTP. aiohttp would write a traceback into the log for each."""
        if isinstance(exc, Exception) and not isinstance(exc, HttpProcessingError):
            return super().handle_error(request, status, exc, message)
        if isinstance(self._manager, _Connections):
            self._manager.invalid += 1
        response = refusal(Failure("bad_request", status, "the request is not valid HTTP"))
        response.force_close()
        return response


class _Connections(web.Server):
    """Makes the protocol of each connection. Connections beyond the limit are closed at once."""

    def __init__(self, handle: Handle, settings: ServingSettings) -> None:
        # The end of a connection cancels its request, and with it the one to Prometheus.
        super().__init__(handle, handler_cancellation=True)
        self._settings = settings
        self._max = settings.connections_max
        self.open = 0
        self.invalid = 0
        self.refused = 0

    def __call__(self) -> RequestHandler:
        """Make the protocol of a connection."""
        return _Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=_UNUSED,
            keepalive_timeout=self._settings.idle_s,
            lingering_time=_CLOSE_S,
            max_line_size=self._settings.target_max_bytes,
            max_headers=_HEADERS_MAX,
            max_field_size=_HEADER_BYTES,
            auto_decompress=False,
        )

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Count a connection."""
        super().connection_made(handler, transport)
        self.open += 1
        if self.open > self._max:
            self.refused += 1
            transport.abort()

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Count the end of a connection."""
        super().connection_lost(handler, exc)
        self.open -= 1


class Server:
    """Serves clients.

    Args:
        handle: answers a request.
        settings: deadlines and limits.
        context: of TLS; None serves plain HTTP.
    """

    def __init__(self, handle: Handle, settings: ServingSettings, context: ssl.SSLContext | None = None) -> None:
        self._settings = settings
        self._context = context
        self._connections = _Connections(handle, settings)
        self._runner = web.ServerRunner(self._connections, shutdown_timeout=settings.stop_s)

    @property
    def connections(self) -> int:
        """Open connections."""
        return self._connections.open

    @property
    def invalid_requests(self) -> int:
        """Requests that were not valid HTTP."""
        return self._connections.invalid

    @property
    def refused_connections(self) -> int:
        """Connections that were closed at once because there were too many."""
        return self._connections.refused

    @property
    def listening(self) -> bool:
        """Whether clients are accepted."""
        return bool(self._runner.addresses)

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Accept clients. Returns the address.

        Raises:
            OSError: the address cannot be used.
        """
        await self._runner.setup()
        site = web.TCPSite(self._runner, host, port, ssl_context=self._context, backlog=_BACKLOG)
        await site.start()
        address = self._runner.addresses[0]
        return str(address[0]), int(address[1])

    async def stop(self) -> None:
        """Accept no more clients, give requests `stop_s` seconds to end, and cancel the others."""
        await self._runner.cleanup()
