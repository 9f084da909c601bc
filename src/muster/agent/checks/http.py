"""One GET over HTTP/1.1 with a bound on everything, for pages on the node itself and the cloud's own.

Whole client libraries take more memory than the rest of the agent; proxies, redirects and names are not needed here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

PAGE_BYTES_MAX: Final = 4 << 20
_HEAD_BYTES_MAX: Final = 1 << 16


class HttpError(Exception):
    """There is no answer, or none that is HTTP."""


class Answer(NamedTuple):
    """What a server said."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        """The body as text; what is no UTF-8 is marked."""
        return self.body.decode(errors="replace")


async def get(
    url: str, timeout_s: float, headers: Mapping[str, str] | None = None, bytes_max: int = PAGE_BYTES_MAX
) -> Answer:
    """Fetch a page.

    Args:
        url: http://ADDRESS[:PORT]/PATH.
        timeout_s: for all of it.
        headers: further ones.
        bytes_max: a longer page is an error.

    Raises:
        HttpError: refused, not in time, not HTTP, cut off, or too long.
        ValueError: the URL is no such URL.
    """
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ValueError(f"{url}: only http://ADDRESS[:PORT]/PATH can be fetched")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    lines = [f"GET {path} HTTP/1.1", f"Host: {parts.netloc}", "Connection: close", "Accept: */*"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    request = ("\r\n".join(lines) + "\r\n\r\n").encode()
    try:
        async with asyncio.timeout(timeout_s):
            return await _exchange(parts.hostname, parts.port or 80, request, bytes_max)
    except TimeoutError:
        raise HttpError(f"{url}: no answer within {timeout_s:g} s") from None
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
        raise HttpError(f"{url}: {error}") from error


async def _exchange(host: str, port: int, request: bytes, bytes_max: int) -> Answer:
    reader, writer = await asyncio.open_connection(host, port, limit=_HEAD_BYTES_MAX)
    try:
        writer.write(request)
        await writer.drain()
        status, fields = 100, dict[str, str]()
        while 100 <= status < 200:
            status, fields = _head(await reader.readuntil(b"\r\n\r\n"))
        return Answer(status, await _body(reader, fields, bytes_max))
    finally:
        writer.close()


def _head(head: bytes) -> tuple[int, dict[str, str]]:
    first, *rest = head.decode("latin-1").split("\r\n")
    version, _, status = first.partition(" ")
    if not version.startswith("HTTP/1.") or not status[:3].isdigit():
        raise ValueError("the answer is not HTTP/1")
    fields = (line.partition(":") for line in rest if line)
    return int(status[:3]), {name.strip().lower(): value.strip() for name, _, value in fields}


async def _body(reader: asyncio.StreamReader, fields: Mapping[str, str], bytes_max: int) -> bytes:
    if fields.get("transfer-encoding", "").lower() == "chunked":
        body = bytearray()
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            _check(len(body) + size, bytes_max)
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        return bytes(body)
    if "content-length" in fields:
        size = int(fields["content-length"])
        _check(size, bytes_max)
        return await reader.readexactly(size)
    body = bytearray()
    while piece := await reader.read(1 << 16):
        body += piece
        _check(len(body), bytes_max)
    return bytes(body)


def _check(size: int, bytes_max: int) -> None:
    if not 0 <= size <= bytes_max:
        raise ValueError(f"{size} bytes where {bytes_max} are the most")
