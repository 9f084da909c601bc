"""A kubelet that streams a log, echoes what exec reads, and speaks a raw protocol for port-forward."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from pathlib import Path
from typing import cast

from aiohttp import web

from muster.kube.connection.pki import CertificateAuthority

_STDIN, _STDOUT, _ERROR = b"\x00", b"\x01", b"\x03"
_SUCCESS = b'{"metadata":{},"status":"Success"}'


class KubeletStub:
    """Serves in a thread of its own.

    Attributes:
        port: where the API server reaches it.
        left: a client left before the end of its log.
    """

    def __init__(self, folder: Path) -> None:
        CertificateAuthority.create().issue_server("kubelet", ["127.0.0.1"]).write(folder / "k.crt", folder / "k.key")
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "k.crt", folder / "k.key")
        self.port = 0
        self.left = threading.Event()
        self._ready = threading.Event()
        self._stop = asyncio.Event()
        self._go_on = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> KubeletStub:
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(30)

    def go_on(self) -> None:
        """Let the log that is followed end."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._go_on.set)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        application = web.Application()
        application.router.add_get("/containerLogs/{tail:.*}", self._log)
        application.router.add_get("/exec/{tail:.*}", _exec)
        application.router.add_post("/portForward/{tail:.*}", _port_forward)
        runner = web.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._context).start()
        self.port = runner.addresses[0][1]
        self._ready.set()
        await self._stop.wait()
        await runner.cleanup()

    async def _log(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        await response.write(b"first\n")
        try:
            await self._go_on.wait()
        except asyncio.CancelledError:
            self.left.set()
            raise
        self._go_on.clear()
        await response.write(b"second\n")
        return response


async def _exec(request: web.Request) -> web.StreamResponse:
    socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
    await socket.prepare(request)
    async for message in socket:
        if message.data.startswith(_STDIN):
            await socket.send_bytes(_STDOUT + b"read " + message.data[1:])
            break
    await socket.send_bytes(_ERROR + _SUCCESS)
    await socket.close()
    return socket


async def _port_forward(request: web.Request) -> web.StreamResponse:
    """Switch to another protocol, in which everything comes back in capitals."""
    transport = cast(asyncio.Transport, request.transport)
    assert request.headers["Upgrade"] == "SPDY/3.1"
    ended = asyncio.Event()

    class Capitals(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            transport.write(data.upper())

        def connection_lost(self, _: Exception | None) -> None:
            ended.set()

    transport.set_protocol(Capitals())
    transport.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n")
    with contextlib.suppress(asyncio.CancelledError):
        await ended.wait()
    raise ConnectionResetError
