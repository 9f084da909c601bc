"""An HTTP server whose answers are given: API servers that refuse, close, stall and talk nonsense."""

from __future__ import annotations

import asyncio
import ssl
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from muster.kube.connection.pki import CertificateAuthority

Answer = Callable[[bytes, asyncio.StreamWriter], Awaitable[bool]]
"""Answers one request (its head and body); whether the connection stays open."""

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server:
    """An HTTP server whose answers are given; it counts connections and keeps requests."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.connections = 0
        self.requests: list[bytes] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length:")), 0
                )
                self.requests.append(head + await reader.readexactly(length))
                if not await self._answer(self.requests[-1], writer):
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def serving(answer: Answer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    made = Server(answer)
    listener = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=tls)
    made.url = f"http{'s' if tls else ''}://127.0.0.1:{listener.sockets[0].getsockname()[1]}/base"
    yield made
    listener.close()


def always(data: bytes, *, keep: bool = True) -> Answer:
    async def answer(request: bytes, writer: asyncio.StreamWriter) -> bool:
        writer.write(data)
        await writer.drain()
        return keep

    return answer


def status(code: int, reason: str, *headers: bytes) -> bytes:
    body = f'{{"kind":"Status","reason":"{reason}","message":"no","code":{code}}}'.encode()
    head = [f"HTTP/1.1 {code} X".encode(), f"Content-Length: {len(body)}".encode(), *headers]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def tls_of(authority: CertificateAuthority) -> ssl.SSLContext:
    """A server's side of TLS, with a certificate of that authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pair = authority.issue_server("server", ("127.0.0.1",))
    with tempfile.TemporaryDirectory() as folder:
        certificate, key = Path(folder) / "crt", Path(folder) / "key"
        pair.write(certificate, key)
        context.load_cert_chain(certificate, key)
    return context
