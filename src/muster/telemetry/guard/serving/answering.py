"""Sends answers to clients."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import struct
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from aiohttp import HttpVersion11, web

from muster.kube.http1.heads import date, response_head
from muster.telemetry.guard.deadline import within
from muster.telemetry.guard.serving.failure import Failure
from muster.telemetry.guard.serving.flight import Reader
from muster.telemetry.guard.serving.settings import ServingSettings

_NO_LINGER: Final = struct.pack("ii", 1, 0)
_BODILESS: Final = frozenset({204, 304})
_UNTYPED: Final = ("Content-Type", "application/octet-stream")
"""Of an answer that names no type, so that no browser guesses one. aiohttp adds it to answers in parts."""
SERVER: Final = "muster-guard"
"""Names the guard in answers; aiohttp would name its version."""


class Sent(msgspec.Struct, frozen=True):
    """An answer whose head was sent.

    Attributes:
        response: for aiohttp.
        bytes: of the body that were sent.
        broken: why the answer is not complete; the connection is reset so that the client sees it.
    """

    response: web.StreamResponse
    bytes: int
    broken: Failure | None = None


async def stream(
    request: web.BaseRequest, reader: Reader, settings: ServingSettings, headers: Mapping[str, str]
) -> Sent:
    """Send an answer as it comes, at the pace of the client.

    Raises:
        Failure: Prometheus gave no answer; nothing was sent.
    """
    await reader.head()
    whole = reader.whole()
    if whole is not None and request.version == HttpVersion11 and reader.status not in _BODILESS:
        return await _send_whole(request, reader, whole, settings, headers)
    response = _empty(request, reader) if whole is None else web.Response(status=reader.status, body=whole)
    for name, value in reader.headers:
        response.headers.add(name, value)
    response.headers.update(headers)
    response.headers["Server"] = SERVER
    sent, clock = 0, asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(settings.write_stall_s) as deadline:
            reader.on_cut = lambda: deadline.reschedule(clock())
            await response.prepare(request)
            while whole is None:
                if reader.waits:
                    # Waiting for Prometheus does not count: the flight has deadlines of its own.
                    deadline.reschedule(None)
                    chunk = await reader.chunk()
                    deadline.reschedule(clock() + settings.write_stall_s)
                else:
                    chunk = await reader.chunk()
                    if sent and chunk:
                        deadline.reschedule(clock() + settings.write_stall_s)
                if not chunk:
                    break
                await response.write(chunk)
                sent += len(chunk)
            await response.write_eof()
            sent += len(whole or b"")
    except Failure as failure:
        reset(request)
        return Sent(response, sent, failure)
    except TimeoutError:
        reset(request)
        return Sent(response, sent, _slow_client(settings))
    return Sent(response, sent)


async def _send_whole(
    request: web.BaseRequest, reader: Reader, body: bytes, settings: ServingSettings, headers: Mapping[str, str]
) -> Sent:
    """Send an answer that is all here, in one write: most answers are small."""
    keep_alive = request.keep_alive
    head = response_head(
        reader.status,
        [
            *reader.headers,
            *headers.items(),
            *(() if any(name.lower() == "content-type" for name, _ in reader.headers) else (_UNTYPED,)),
            ("Server", SERVER),
            ("Content-Length", str(len(body))),
            ("Date", date()),
            *(() if keep_alive else (("Connection", "close"),)),
        ],
    )
    response = _Written(reader.status, keep_alive=keep_alive)
    try:
        await within(settings.write_stall_s, _write(request, head + body))
    except TimeoutError:
        reset(request)
        return Sent(response, len(body), _slow_client(settings))
    return Sent(response, len(body))


async def _write(request: web.BaseRequest, data: bytes) -> None:
    await request.writer.write(data)
    await request.writer.drain()


class _Written(web.StreamResponse):
    """A response that was written already. aiohttp learns from it whether the connection stays."""

    def __init__(self, status: int, *, keep_alive: bool) -> None:
        super().__init__(status=status)
        if not keep_alive:
            self.force_close()

    @property
    def keep_alive(self) -> bool:
        """Whether another request may follow."""
        return super().keep_alive is None

    async def prepare(self, request: web.BaseRequest) -> None:
        """Do nothing: the head was written."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: the body was written."""


def _slow_client(settings: ServingSettings) -> Failure:
    return Failure("slow_client", 408, f"the client read nothing for {settings.write_stall_s:g} s")


def _empty(request: web.BaseRequest, reader: Reader) -> web.StreamResponse:
    """Return a response whose body follows in parts. aiohttp sends its head alone, so a whole answer has another."""
    response = web.StreamResponse(status=reader.status)
    if reader.length is not None:
        response.content_length = reader.length
    elif request.version >= (1, 1):
        response.enable_chunked_encoding()
    return response


def reset(request: web.BaseRequest) -> None:
    """Reset the connection: HTTP/1.0 clients take an orderly end for the end of the answer."""
    transport = request.transport
    if transport is not None:
        connection = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):  # it is closed already
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        transport.abort()


def refusal(failure: Failure) -> web.Response:
    """Return the answer to a request that is not sent to Prometheus, or to which Prometheus gave none."""
    response = web.Response(
        status=failure.status,
        body=failure.body(),
        headers={**failure.headers, "Server": SERVER, "Content-Type": "application/json", "Cache-Control": "no-store"},
    )
    if failure.retry_after_s is not None:
        response.headers["Retry-After"] = str(math.ceil(failure.retry_after_s))
    return response


def page(document: Mapping[str, Any]) -> web.Response:
    """Return a document of the guard itself."""
    return web.Response(
        body=msgspec.json.encode(document) + b"\n",
        headers={"Server": SERVER, "Content-Type": "application/json", "Cache-Control": "no-store"},
    )
