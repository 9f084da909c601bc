"""A client that speaks HTTP/1.1 byte by byte."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass


@dataclass
class Reply:
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """Speaks HTTP/1.1 byte by byte, so that tests decide what is sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, text: str | bytes) -> None:
        self.writer.write(text.encode() if isinstance(text, str) else text)
        await self.writer.drain()

    async def get(self, path: str, *headers: str) -> Reply:
        await self.send("\r\n".join([f"GET {path} HTTP/1.1", "Host: cache", *headers, "", ""]))
        return await self.reply()

    async def head(self) -> Reply:
        """Read the head of a response."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = [line.partition(": ") for line in lines[1:] if line]
        return Reply(int(lines[0].split()[1]), {name.lower(): value for name, _, value in pairs}, b"")

    async def chunk(self) -> bytes:
        """Read one chunk of a chunked body."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size)
        assert await self.reader.readexactly(2) == b"\r\n"
        return data

    async def reply(self) -> Reply:
        """Read a response."""
        found = await self.head()
        if found.headers.get("transfer-encoding") == "chunked":
            while data := await self.chunk():
                found.body += data
        elif "content-length" in found.headers:
            found.body = await self.reader.readexactly(int(found.headers["content-length"]))
        return found

    async def ended(self) -> bytes:
        """Read until the server closes the connection; "" if it cuts it off."""
        try:
            async with asyncio.timeout(20):
                return await self.reader.read(-1)
        except ConnectionError:
            return b""

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (ConnectionError, ssl.SSLError):
            return
