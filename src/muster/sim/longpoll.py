"""A small HTTPS client for simulated supervisors: HTTP/1.1, one request at a time, with simulated disconnects.

A process has thousands of these connections, so this uses asyncio's streams instead of an HTTP library.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import struct
import urllib.parse
from typing import Any

_CONNECT_S = 40.0
"""The real supervisor allows 10 s for TCP and 30 s for TLS."""


class Link:
    """A connection to the controller. It is opened when needed, and reopened after a loss."""

    def __init__(self, url: str, tls: ssl.SSLContext) -> None:
        """Create the link; `post` opens the connection."""
        parts = urllib.parse.urlsplit(url)
        self._host, self._port, self._base = parts.hostname or "", parts.port or 443, parts.path.rstrip("/")
        self._tls = tls
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def open(self) -> bool:
        """Returns whether there is a connection."""
        return self._streams is not None

    async def post(self, path: str, token: str, body: dict[str, Any], timeout_s: float) -> tuple[int, dict[str, Any]]:
        """Send one request; returns status and answer. Raises OSError, EOFError, ValueError or TimeoutError."""
        if self._streams is None:
            async with asyncio.timeout(_CONNECT_S):
                self._streams = await asyncio.open_connection(self._host, self._port, ssl=self._tls)
        reader, writer = self._streams
        data = json.dumps(body).encode()
        head = (
            f"POST {self._base}{path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        writer.write(head.encode() + data)
        async with asyncio.timeout(timeout_s):
            lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
            answer = json.loads(await reader.readexactly(int(headers["content-length"])) or b"{}")
        if headers.get("connection", "").lower() == "close":
            self.cut()
        return int(lines[0].split(" ", 2)[1]), answer

    def cut(self) -> None:
        """Close the connection at once. An open request fails."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None

    def reset(self) -> None:
        """Close with a TCP reset, as when a machine has rebooted."""
        if self._streams is not None:
            plain = self._streams[1].get_extra_info("socket")
            with socket.socket(
                fileno=os.dup(plain.fileno())
            ) as same:  # the option applies to the connection, so a copy of its descriptor is enough
                same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.cut()
