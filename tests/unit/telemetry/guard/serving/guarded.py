"""A guard in front of an upstream that answers as its script says."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from muster.telemetry.guard.budgets.budgets import Budgets
from muster.telemetry.guard.callers.caller import Caller
from muster.telemetry.guard.callers.callers import Callers
from muster.telemetry.guard.config import parse_config
from muster.telemetry.guard.serving.assessment import Assessment
from muster.telemetry.guard.serving.destination import Destination
from muster.telemetry.guard.serving.handler import Backend, Handler
from muster.telemetry.guard.serving.records import Record
from muster.telemetry.guard.serving.server import Server
from muster.telemetry.guard.serving.settings import ServingSettings
from muster.telemetry.guard.serving.upstream import Upstream as Prometheus
from tests.support.rawclient import Client, Reply
from tests.support.rawserver import Arrived, Script, Upstream

OPEN = "callers: {anonymous: default}"
QUERY = "/api/v1/query?query=up"
ANSWER = b'{"status":"success"}'


class Allowing:
    """Allows every request, at a cost of 1."""

    def __init__(self) -> None:
        self.template = Assessment(endpoint="query", parameters=(), cost=1.0, timeout_s=5.0, max_bytes=1 << 30)
        self.shared = True
        self.seen: list[tuple[str, str, tuple[tuple[str, str], ...], bytes]] = []

    async def __call__(
        self,
        method: str,
        path: str,
        parameters: tuple[tuple[str, str], ...],
        content_type: str,
        body: bytes,
        caller: Caller,
    ) -> Assessment:
        self.seen.append((method, path, parameters, body))
        asked = parameters if self.shared else None
        return msgspec.structs.replace(self.template, parameters=parameters, body=body or None, asked=asked)


@dataclass
class Guarded:
    """A guard, its upstream, and what became of its requests."""

    upstream: Upstream
    handler: Handler
    server: Server
    assess: Allowing
    port: int
    callers: Callers
    records: list[Record] = field(default_factory=list)
    clients: list[Client] = field(default_factory=list)

    async def connect(self, context: ssl.SSLContext | None = None) -> Client:
        """Connect a client."""
        name = "127.0.0.1" if context is not None else None
        made = Client(*await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname=name))
        self.clients.append(made)
        return made

    async def get(self, path: str = QUERY, *headers: str) -> Reply:
        """Send a request on a new connection."""
        return await (await self.connect()).get(path, *headers)

    def outcomes(self) -> list[str]:
        """What became of the requests, in the order of their ends."""
        return [record.outcome for record in self.records]


@asynccontextmanager
async def guarded(
    script: Script,
    *,
    config: str = OPEN,
    settings: ServingSettings | None = None,
    prefix: str = "",
    context: ssl.SSLContext | None = None,
) -> AsyncIterator[Guarded]:
    """Run a guard. `config` holds the keys of guard.yaml besides `upstream`."""
    settings = settings or ServingSettings(stop_s=1.0)
    upstream = Upstream(script)
    await upstream.start()
    url = f"http://127.0.0.1:{upstream.port}{prefix}"
    parsed = parse_config(f"upstream: {{url: '{url}'}}\n{config}\n")
    prometheus = Prometheus(Destination(url), settings)
    records: list[Record] = []
    assess = Allowing()
    callers = Callers(parsed)
    handler = Handler(
        Backend(parsed, prefix, prometheus, assess), callers, Budgets(parsed), settings, records.append, {}
    )
    server = Server(handler.handle, settings, context)
    _, port = await server.listen("127.0.0.1", 0)
    found = Guarded(upstream, handler, server, assess, port, callers, records)
    faults: list[str] = []
    listener = logging.Handler(logging.ERROR)
    listener.emit = lambda record: faults.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(listener)
    try:
        yield found
    finally:
        logging.getLogger().removeHandler(listener)
        for client in found.clients:
            await client.close()
        await server.stop()
        await handler.flights.close()
        await prometheus.close()
        await upstream.close()
    assert faults == []


async def answer(_: Upstream, arrived: Arrived) -> None:
    """A script: answer each request with `ANSWER`."""
    await arrived.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 20\r\n\r\n" + ANSWER)
