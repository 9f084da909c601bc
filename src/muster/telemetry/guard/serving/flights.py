"""The requests to Prometheus in flight. Equal ones are sent once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from muster.telemetry.guard.serving.flight import Flight, Reader
from muster.telemetry.guard.serving.settings import ServingSettings
from muster.telemetry.guard.serving.upstream import Upstream, UpstreamRequest


class Flights:
    """The requests in flight. An answer is never kept after its request has ended.

    Args:
        settings: of each flight.
    """

    def __init__(self, settings: ServingSettings) -> None:
        self._settings = settings
        self._shared: dict[UpstreamRequest, Flight] = {}
        self._all: set[Flight] = set()
        self._awaited: dict[UpstreamRequest, set[asyncio.Future[None]]] = {}

    def __len__(self) -> int:
        return len(self._all)

    def join(self, request: UpstreamRequest) -> Reader | None:
        """Join the flight of an equal request: same path, parameters, tenant, credentials, encoding and limits.

        Returns:
            None: no such request is in flight, or its first bytes are gone.
        """
        flight = self._shared.get(request)
        return flight.join() if flight is not None and flight.joinable else None

    def started(self, request: UpstreamRequest) -> asyncio.Future[None]:
        """Return a future that ends when an equal request is sent. Give it to `forget` afterwards."""
        future = asyncio.get_running_loop().create_future()
        self._awaited.setdefault(request, set()).add(future)
        return future

    def forget(self, request: UpstreamRequest, future: asyncio.Future[None]) -> None:
        """Drop a future of `started`."""
        futures = self._awaited.get(request)
        if futures is not None:
            futures.discard(future)
            if not futures:
                del self._awaited[request]

    def start(
        self,
        request: UpstreamRequest,
        upstream: Upstream,
        ended: Callable[[Flight], None],
        *,
        shareable: bool = True,
    ) -> Reader:
        """Send a request.

        Args:
            request: what is sent.
            upstream: sends it.
            ended: called once, when nothing more comes from Prometheus.
            shareable: equal requests may join.
        """

        def end(flight: Flight) -> None:
            self._all.discard(flight)
            if self._shared.get(request) is flight:
                del self._shared[request]
            ended(flight)

        flight = Flight(request, upstream, self._settings, end)
        self._all.add(flight)
        if shareable:
            self._shared[request] = flight
            for future in self._awaited.pop(request, ()):
                if not future.done():
                    future.set_result(None)
        return flight.join()

    async def close(self) -> None:
        """End all requests."""
        tasks = [flight.cancel() for flight in self._all]
        if tasks:
            await asyncio.wait(tasks)
