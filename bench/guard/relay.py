"""python -m bench.guard.relay HOST:PORT: passes bytes on to a server, and does nothing else.

What it adds to a request is what any process between a client and Prometheus adds on this machine. Prints its address,
and serves until stdin ends.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import Transport
from typing import cast

import uvloop


class _ToServer(asyncio.Protocol):
    """The connection to the server that belongs to one client."""

    def __init__(self, client: Transport) -> None:
        self._client = client

    def data_received(self, data: bytes) -> None:
        self._client.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.close()


class _FromClient(asyncio.Protocol):
    """The connection of one client."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._waiting: list[bytes] = []
        self._server: Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._connecting = asyncio.ensure_future(self._connect(cast(Transport, transport)))

    def data_received(self, data: bytes) -> None:
        if self._server is None:
            self._waiting.append(data)
        else:
            self._server.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connecting.cancel()
        if self._server is not None:
            self._server.close()

    async def _connect(self, client: Transport) -> None:
        loop = asyncio.get_running_loop()
        self._server, _ = await loop.create_connection(lambda: _ToServer(client), *self._address)
        self._server.write(b"".join(self._waiting))


async def serve(host: str, port: int) -> None:
    """Serve until stdin ends."""
    server = await asyncio.get_running_loop().create_server(lambda: _FromClient(host, port), "127.0.0.1", 0)
    print("http://{}:{}".format(*server.sockets[0].getsockname()), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    name, _, number = sys.argv[1].rpartition(":")
    uvloop.run(serve(name, int(number)))
