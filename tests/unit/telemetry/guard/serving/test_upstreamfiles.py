"""The token and the certificates for Prometheus are replaced while the guard runs."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from muster.embedded.kubelet.containers.atomic_folder import write_atomically
from muster.kube import rotatedfiles
from muster.kube.connection.pki import CertificateAuthority, KeyPair
from muster.kube.errors import ConfigError
from muster.kube.servertls import ServerTLS
from muster.telemetry.guard.serving import upstreamfiles
from muster.telemetry.guard.serving.destination import Destination, make_destination
from muster.telemetry.guard.serving.failure import Failure
from muster.telemetry.guard.serving.settings import ServingSettings
from muster.telemetry.guard.serving.upstream import Upstream as Prometheus
from muster.telemetry.guard.serving.upstream import UpstreamRequest
from muster.telemetry.guard.serving.upstreamfiles import CERTIFICATES, TOKEN, FileState
from muster.telemetry.guard.upstream import UpstreamConfig
from tests.support.clientcertificates import certificate, named
from tests.support.rawserver import Arrived, Upstream
from tests.support.waiting import until
from tests.unit.telemetry.guard.serving.guarded import ANSWER, answer

OLD, NEW = CertificateAuthority.create("old"), CertificateAuthority.create("new")
CLIENTS = CertificateAuthority.create("clients")
FIRST, SECOND = (certificate(CLIENTS, named(name)) for name in ("first", "second"))
NAMES = ("token", "ca.crt", "tls.crt", "tls.key")


@dataclass
class World:
    """A Prometheus that asks for client certificates, and the guard's side of it.

    Attributes:
        folder: the files of the guard, replaced as the kubelet does.
        upstream: the server.
        tls: its certificate.
        destination: of the guard.
        asked: the Authorization headers that arrived, and the common names of the certificates that were shown.
        go_on: lets the answers go on; cleared, they wait.
    """

    folder: Path
    upstream: Upstream
    tls: ServerTLS
    destination: Destination
    prometheus: Prometheus
    asked: list[tuple[str, str]] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)

    def replace(self, **files: bytes) -> None:
        """Replace files at once. A `_` stands for a dot."""
        content = {name: (self.folder / name).read_bytes() for name in NAMES}
        content.update((name.replace("_", "."), text) for name, text in files.items())
        write_atomically(self.folder, {name: (text, 0o600) for name, text in content.items()})

    async def ask(self) -> tuple[str, str]:
        """Send a request and return what Prometheus saw. Raises Failure."""
        with closing(await self.prometheus.send(request())) as response:
            assert await response.read(60) == ANSWER
        return self.asked[-1]

    async def shown(self, token: str, name: str) -> None:
        """Wait until a request has this token and certificate."""

        async def check() -> bool:
            return await self.ask() == (f"Bearer {token}", name)

        await until(f"{token} and {name} are used", check)

    def state(self, kind: str) -> FileState:
        return self.destination.files.state[kind]


def request() -> UpstreamRequest:
    return UpstreamRequest("GET", "/api/v1/query", None, (), None, (), (), b"", 60.0, None)


def config(folder: Path, port: int) -> UpstreamConfig:
    token, authority, certificate_file, key = (str(folder / name) for name in NAMES)
    return UpstreamConfig(
        f"https://127.0.0.1:{port}",
        token_file=token,
        ca_file=authority,
        certificate_file=certificate_file,
        key_file=key,
    )


def write(folder: Path, pair: KeyPair = FIRST) -> None:
    content = dict(zip(NAMES, (b"t-1\n", OLD.certificate, pair.certificate, pair.key), strict=True))
    write_atomically(folder, {name: (text, 0o600) for name, text in content.items()})


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(rotatedfiles, "SETTLE_S", 0.0)
    monkeypatch.setattr(upstreamfiles, "READ_S", 0.001)
    write(tmp_path)
    tls = ServerTLS(None)
    tls.use(OLD.issue_server("prometheus", ["127.0.0.1"]))
    tls.trust(CLIENTS.certificate)

    async def script(upstream: Upstream, arrived: Arrived) -> None:
        shown = arrived.writer.get_extra_info("ssl_object").getpeercert()
        found.asked.append((arrived.headers.get("authorization", ""), dict(shown["subject"][0])["commonName"]))
        await found.go_on.wait()
        await answer(upstream, arrived)

    async with serving(Upstream(script), tls) as upstream:
        destination = make_destination(config(tmp_path, upstream.port))
        found = World(tmp_path, upstream, tls, destination, Prometheus(destination, ServingSettings()))
        found.go_on.set()
        tasks = [asyncio.create_task(work) for work in destination.follow()]
        yield found
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await found.prometheus.close()


@asynccontextmanager
async def serving(upstream: Upstream, tls: ServerTLS) -> AsyncIterator[Upstream]:
    await upstream.start(tls.context)
    yield upstream
    await upstream.close()


async def test_new_token_and_certificate_are_used_without_a_failed_request(world: World) -> None:
    assert await world.ask() == ("Bearer t-1", "first")
    world.replace(token=b"t-2", tls_crt=SECOND.certificate, tls_key=SECOND.key)
    await world.shown("t-2", "second")
    assert world.state(TOKEN) == FileState(False, 1)
    assert world.state(CERTIFICATES) == FileState(False, 1)


async def test_kept_connections_do_not_outlive_their_certificate(world: World) -> None:
    """A server verifies a certificate only when a connection begins."""
    for _ in range(3):
        await world.ask()
    assert world.upstream.connections == 1
    world.replace(tls_crt=SECOND.certificate, tls_key=SECOND.key)
    await until("the idle connection is closed", lambda: world.upstream.open == 0)
    assert await world.ask() == ("Bearer t-1", "second")
    assert world.upstream.connections == 2


async def test_request_that_runs_is_answered_and_its_connection_then_ends(world: World) -> None:
    world.go_on.clear()
    running = asyncio.create_task(world.ask())
    await until("the request has arrived", lambda: len(world.asked) == 1)
    world.replace(tls_crt=SECOND.certificate, tls_key=SECOND.key)
    await until("the new certificate is loaded", lambda: world.state(CERTIFICATES).reloads)
    world.go_on.set()
    assert await running == ("Bearer t-1", "first")
    await until("its connection is closed", lambda: world.upstream.open == 0)
    assert await world.ask() == ("Bearer t-1", "second")


async def test_server_with_a_certificate_of_a_new_authority_is_reached_again(world: World) -> None:
    await world.ask()
    world.tls.use(NEW.issue_server("prometheus", ["127.0.0.1"]))
    world.replace(ca_crt="# Zertifizierungsstelle für Prüfungen\n".encode() + NEW.certificate)
    await until("the new authority is trusted", lambda: world.state(CERTIFICATES).reloads)
    assert await world.ask() == ("Bearer t-1", "first")
    world.tls.use(OLD.issue_server("prometheus", ["127.0.0.1"]))
    world.replace(ca_crt=NEW.certificate)  # without the comment: read again, and the old one stays forgotten
    await until("it is loaded", lambda: world.state(CERTIFICATES).reloads == 2)
    with pytest.raises(Failure, match="cannot be reached"):
        await world.ask()


def encrypted(pair: KeyPair) -> bytes:
    return serialization.load_pem_private_key(pair.key, None).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )


@pytest.mark.parametrize(
    "files",
    [
        {"tls_crt": SECOND.certificate},
        {"tls_key": SECOND.key[: len(SECOND.key) // 2]},
        {"tls_crt": b""},
        {"tls_crt": SECOND.certificate, "tls_key": encrypted(SECOND)},
        {"ca_crt": b""},
        {"ca_crt": OLD.certificate + NEW.certificate[:-40]},
    ],
    ids=["other key", "half a key", "empty", "encrypted", "no authority", "half an authority"],
)
async def test_certificates_that_cannot_be_used_leave_the_last_ones_in_use(
    world: World, caplog: pytest.LogCaptureFixture, files: dict[str, bytes]
) -> None:
    world.replace(**files)
    await until("the problem is found", lambda: world.state(CERTIFICATES).problem)
    assert await world.ask() == ("Bearer t-1", "first")
    assert world.state(TOKEN) == FileState(False, 0)
    world.replace(ca_crt=OLD.certificate + NEW.certificate, tls_crt=SECOND.certificate, tls_key=SECOND.key)
    await world.shown("t-1", "second")
    await until("the problem ends", lambda: not world.state(CERTIFICATES).problem)
    assert "upstream.certificateFile" in caplog.text
    # The name of pytest's own folder can contain the token: `pytest-1`.
    logged = caplog.text.replace(str(world.folder), "")
    for secret in (b"t-1", *FIRST.key.splitlines()[1:-1], *SECOND.key.splitlines()[1:-1]):
        assert secret.decode() not in logged


async def test_new_token_does_not_close_connections(world: World) -> None:
    await world.ask()
    world.replace(token=b"t-2")
    await world.shown("t-2", "first")
    assert world.upstream.connections == 1


@pytest.mark.parametrize("name", NAMES)
def test_guard_does_not_start_without_a_file(tmp_path: Path, name: str) -> None:
    write(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ConfigError, match=r"upstream\.\w+File"):
        make_destination(config(tmp_path, 1))


def test_authorities_of_the_system_are_used_without_a_file() -> None:
    context = make_destination(UpstreamConfig("https://127.0.0.1")).files.context
    assert context is not None
    assert context.verify_mode == ssl.CERT_REQUIRED
