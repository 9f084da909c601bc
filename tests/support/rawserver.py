"""A server of raw HTTP/1.1 that records what it receives and answers as its script says."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

Script = Callable[["Upstream", "Arrived"], Awaitable[None]]


@dataclass
class Arrived:
    """One connection, and the head of the newest request on it."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    line: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    number: int = 0

    async def send(self, data: str | bytes) -> None:
        self.writer.write(data.encode() if isinstance(data, str) else data)
        await self.writer.drain()

    async def chunks(self) -> bytes:
        """Read a chunked body."""
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += await self.reader.readexactly(size)
            await self.reader.readexactly(2)
        await self.reader.readuntil(b"\r\n")
        return body


class Upstream:
    """A server of raw HTTP/1.1."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.connections = 0
        self.open = 0
        self.heads: list[tuple[str, dict[str, str]]] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, context: ssl.SSLContext | None = None) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=context)
        self.port = self._server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        assert self._server is not None
        self._server.close()

    async def close(self) -> None:
        """Stop, and end what is still open."""
        self.stop()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._handle(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        arrived = Arrived(reader, writer)
        try:
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                pairs = [line.partition(": ") for line in lines[1:] if line]
                arrived.line, arrived.headers = lines[0], {name.lower(): value for name, _, value in pairs}
                arrived.number += 1
                self.heads.append((arrived.line, arrived.headers))
                await self.script(self, arrived)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self.open -= 1
            writer.close()
