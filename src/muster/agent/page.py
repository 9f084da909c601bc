"""Serves /healthz and /metrics of the agent with plain asyncio: a web framework would be a third of its memory."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from muster.kube.progress import Progress

Metrics = Callable[[], Mapping[str, float]]
"""Values by name with labels, as in Prometheus' text format."""

_REQUEST_S: Final = 5.0
_LINES_MAX: Final = 64


@asynccontextmanager
async def serve(progress: Progress, metrics: Metrics, host: str, port: int) -> AsyncIterator[int]:
    """Serve while this is open. Yields the port.

    /healthz is 500 if a loop has not moved for too long, and names it. A check that hangs does not count: it is a
    finding.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(_REQUEST_S):
                words = (await reader.readline()).split()
                for _ in range(_LINES_MAX):
                    if not (await reader.readline()).strip():
                        break
                status, text = _answer(words[1].decode() if len(words) > 1 else "", progress, metrics)
                body = text.encode()
                head = (
                    f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {len(body)}\r\n"
                )
                writer.write(head.encode() + b"Connection: close\r\n\r\n" + body)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, host, port, limit=8192)
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()


def _answer(path: str, progress: Progress, metrics: Metrics) -> tuple[str, str]:
    if path == "/healthz":
        late = progress.overdue()
        lines = [f"{name}: no progress for {age_s:.0f} s\n" for name, age_s in sorted(late.items())]
        return ("500 Internal Server Error", "".join(lines)) if late else ("200 OK", "ok\n")
    if path == "/metrics":
        shown = {
            **{f'muster_progress_age_seconds{{loop="{name}"}}': age_s for name, age_s in progress.ages_s().items()},
            **{
                f'muster_progress_deadline_seconds{{loop="{name}"}}': at_s
                for name, at_s in progress.deadlines_s().items()
            },
        }
        return "200 OK", "".join(f"{name} {value:.15g}\n" for name, value in {**shown, **metrics()}.items())
    return "404 Not Found", "there is /healthz and /metrics\n"
