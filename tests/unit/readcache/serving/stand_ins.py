"""A server with stand-ins for access and reads, and a plain client."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from muster.kube.connection.pki import CertificateAuthority
from muster.kube.objects.meta import Resource
from muster.readcache.kinds import CachedKind
from muster.readcache.request import Answer, Forward, Refusal, Request, Target
from muster.readcache.serving.exchange import Exchange
from muster.readcache.serving.server import Forwarder, Server
from muster.readcache.serving.settings import ServingSettings
from tests.support.rawclient import Client

PODS = CachedKind(Resource("", "v1", "pods", "Pod", True))
JSON = "application/json"


class OpenGate:
    """Admits everything, or refuses with `refusal`."""

    def __init__(self) -> None:
        self.refusal: Refusal | None = None

    async def admit(self, target: Target, request: Request) -> object:
        if self.refusal is not None:
            raise self.refusal
        return None


@dataclass
class FakeSubscription:
    """Records what the server does with it."""

    on_frames: Callable[[list[bytes]], None]
    on_closed: Callable[[str], None]
    ended: list[FakeSubscription]
    calls: list[str] = field(default_factory=list)

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def close(self) -> None:
        self.calls.append("close")
        self.ended.append(self)


@dataclass
class FakeWatch:
    """A watch with these first frames. `ended` has its subscriptions in the order of their ends."""

    pieces: tuple[bytes, ...] = ()
    deadline_s: float = 1000.0
    content_type: str = "application/json;stream=watch"
    headers: tuple[tuple[str, str], ...] = ()
    subscriptions: list[FakeSubscription] = field(default_factory=list)
    ended: list[FakeSubscription] = field(default_factory=list)

    def initial(self) -> Iterator[bytes]:
        yield from self.pieces

    def start(self, on_frames: Callable[[list[bytes]], None], on_closed: Callable[[str], None]) -> FakeSubscription:
        self.subscriptions.append(FakeSubscription(on_frames, on_closed, self.ended))
        return self.subscriptions[-1]

    def push(self, *frames: bytes) -> None:
        pieces = list(frames)
        for subscription in self.subscriptions:
            subscription.on_frames(pieces)


Answering = Callable[[Request], Awaitable["Answer | FakeWatch | Forward"]]


class Scripted:
    """Answers by path."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer | FakeWatch | Forward | Answering] = {}
        self.requests: list[Request] = []

    async def answer(self, target: Target, request: Request) -> Answer | FakeWatch | Forward:
        self.requests.append(request)
        found = self.answers[request.path]
        return await found(request) if callable(found) else found


class NoForwarder:
    """Answers what would be forwarded."""

    async def forward(self, exchange: Exchange, reason: str) -> None:
        size = 0
        while data := await exchange.body.read():
            size += len(data)
        exchange.respond(200, "text/plain", f"{reason}: {size}".encode())

    def close(self) -> None:
        pass


@dataclass
class Served:
    """A running server."""

    server: Server
    gate: OpenGate
    reads: Scripted
    port: int
    client_context: ssl.SSLContext | None

    async def connect(self, context: ssl.SSLContext | None = None) -> Client:
        context = context or self.client_context
        name = "127.0.0.1" if context is not None else None
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context, server_hostname=name)
        return Client(reader, writer)


def tls_contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext, CertificateAuthority]:
    """The server's context, a client's, and the authority of both."""
    authority = CertificateAuthority.create()
    authority.issue_server("readcache", ["127.0.0.1"]).write(folder / "tls.crt", folder / "tls.key")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    client = ssl.create_default_context(cadata=authority.certificate.decode())
    return server, client, authority


@asynccontextmanager
async def serving(
    *,
    context: ssl.SSLContext | None = None,
    client_context: ssl.SSLContext | None = None,
    settings: ServingSettings | None = None,
    forwarder: Forwarder | None = None,
    rng: random.Random | None = None,
) -> AsyncIterator[Served]:
    """A server whose paths below /cached are answered by `reads`."""
    gate, reads = OpenGate(), Scripted()

    def route(request: Request) -> Target | None:
        return Target("get", PODS, "", "x") if request.path.startswith("/cached") else None

    server = Server(
        route,
        gate,
        reads,
        forwarder or NoForwarder(),
        settings=settings or ServingSettings(grace_s=0.1, watches_end_s=0.05),
        context=context,
        rng=rng,
    )
    _, port = server.listen("127.0.0.1", 0)
    try:
        yield Served(server, gate, reads, port, client_context)
    finally:
        await server.stop()
