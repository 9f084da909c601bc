"""The control socket of an embedded cluster's daemon: one JSON line as request and one as answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from muster.sdk.data.wire import short_address

Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

_LINE_BYTES_MAX = 1 << 20


class ControlError(Exception):
    """The daemon refused the request, or does not run."""


@contextlib.asynccontextmanager
async def serve(path: Path, handler: Handler) -> AsyncIterator[None]:
    """Answer requests on the socket while the block runs. A ControlError of `handler` is sent as the answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                reply = await handler(json.loads(await reader.readuntil(b"\n")))
            except ControlError as error:
                reply = {"error": str(error)}
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()
        writer.close()

    with _bound(path) as listening:
        server = await asyncio.start_unix_server(answer, sock=listening, limit=_LINE_BYTES_MAX)
        try:
            yield
        finally:
            server.close()


def ask(path: Path, timeout_s: float = 5.0, **request: Any) -> dict[str, Any]:
    """Send a request to the daemon. Raises ControlError if it refuses or does not answer in time."""
    try:
        with short_address(str(path)) as name, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(timeout_s)
            connection.connect(name)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as answers:
                line = answers.readline(_LINE_BYTES_MAX)
    except OSError as error:
        raise ControlError(f"the cluster's daemon does not answer: {error}") from None
    if not line:
        raise ControlError("the cluster's daemon closed the connection")
    reply: dict[str, Any] = json.loads(line)
    if "error" in reply:
        raise ControlError(reply["error"])
    return reply


@contextlib.contextmanager
def _bound(path: Path) -> Iterator[socket.socket]:
    """Open a socket at `path` that only its owner can use; it is removed after the block."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listening:
        before = os.umask(0o177)
        try:
            with short_address(str(path)) as name:
                listening.bind(name)
        finally:
            os.umask(before)
        try:
            yield listening
        finally:
            path.unlink(missing_ok=True)
