"""The body of a request, with a limit and a deadline."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from muster.telemetry.guard.serving.failure import Failure
from muster.telemetry.guard.serving.settings import ServingSettings

_ENCODINGS: Final = frozenset({"", "identity", "snappy"})
"""Of bodies. Remote read uses snappy; Prometheus does not decompress forms."""


class Bodies:
    """The bytes of all bodies that the guard holds.

    Args:
        max_bytes: greatest sum. Beyond it, bodies are refused.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.bytes = 0

    def holding(self) -> Held:
        """Return a context manager that counts the bytes of one request until its end."""
        return Held(self)

    def take(self, count: int) -> None:
        """Count bytes. Raises Failure: there are too many."""
        if self.bytes + count > self._max_bytes:
            raise Failure("over_budget", 503, "the guard holds too many large requests", retry_after_s=1)
        self.bytes += count


class Held:
    """The bytes of one request, which count until its end."""

    __slots__ = ("_bodies", "_bytes")

    def __init__(self, bodies: Bodies) -> None:
        self._bodies = bodies
        self._bytes = 0

    def __enter__(self) -> Held:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bodies.bytes -= self._bytes

    def add(self, count: int) -> None:
        """Count more bytes. Raises Failure: the guard holds too many."""
        self._bodies.take(count)
        self._bytes += count


async def read_body(request: web.BaseRequest, settings: ServingSettings, held: Held) -> bytes:
    """Read the body of a POST.

    Args:
        request: of the client.
        settings: limits.
        held: counts its bytes.

    Raises:
        Failure: it is too large, too slow, broken or compressed; or the method has none.
    """
    if request.method != "POST":
        if request.body_exists:
            raise Failure("bad_request", 400, f"a {request.method} request has no body; use POST")
        return b""
    encoding = request.headers.get("Content-Encoding", "").strip().lower()
    if encoding not in _ENCODINGS:
        raise Failure("bad_request", 415, "compressed forms are not understood; send the form as it is")
    limit = settings.body_max_bytes
    length = request.content_length
    if length is not None and length > limit:
        raise _too_large(limit)
    expected = request.headers.get("Expect", "")
    if expected and expected.lower() != "100-continue":
        raise Failure("bad_request", 417, "the only known expectation is 100-continue")
    try:
        if request.content.is_eof() and not expected:
            return _checked(request.content.read_nowait(), limit, held)
        async with asyncio.timeout(settings.body_s):
            if expected:
                await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                request.writer.output_size = 0
            return await _all(request, limit, held)
    except TimeoutError:
        raise Failure("bad_request", 408, f"the body did not come within {settings.body_s:g} s") from None
    except (web.RequestPayloadError, HttpProcessingError):
        raise Failure("bad_request", 400, "the body is not valid HTTP") from None


async def _all(request: web.BaseRequest, limit: int, held: Held) -> bytes:
    found = bytearray()
    while chunk := await request.content.readany():
        held.add(len(chunk))
        found += chunk
        if len(found) > limit:
            raise _too_large(limit)
    return bytes(found)


def _checked(body: bytes, limit: int, held: Held) -> bytes:
    held.add(len(body))
    if len(body) > limit:
        raise _too_large(limit)
    return body


def _too_large(limit: int) -> Failure:
    return Failure("bad_request", 413, f"the body has more than {limit} bytes")
