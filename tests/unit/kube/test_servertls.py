"""The certificate and the authorities of a server that runs are replaced, without new connections that fail."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.x509.oid import ExtendedKeyUsageOID

from muster.kube import servertls
from muster.kube.connection.pki import CertificateAuthority, KeyPair
from muster.kube.connection.servingcertificates import load_pair
from muster.kube.errors import ConfigError
from muster.kube.servertls import ServerTLS
from tests.support.clientcertificates import certificate, named, unusable_authorities
from tests.support.waiting import until

SERVER = CertificateAuthority.create("server")
FIRST, SECOND = (SERVER.issue_server("guard", ["127.0.0.1"]) for _ in range(2))

UNUSABLE = unusable_authorities()


def handshake(tls: ServerTLS, client: KeyPair | None = None) -> tuple[bytes | None, bytes | None]:
    """Connect in memory. Returns the certificates of the server and of the client. Raises SSLError."""
    context = ssl.create_default_context(cadata=SERVER.certificate.decode())
    if client is not None:
        load_pair(context, client)
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = context.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    theirs = tls.context.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        for each in (ours, theirs):
            with suppress(ssl.SSLWantReadError):
                each.do_handshake()
    return ours.getpeercert(binary_form=True), theirs.getpeercert(binary_form=True)


def der(pair: KeyPair) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pair.certificate.decode())


@asynccontextmanager
async def watching(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServerTLS]:
    """A context whose files are looked at all the time."""
    monkeypatch.setattr(servertls, "RELOAD_S", 0.001)
    FIRST.write(folder / "tls.crt", folder / "tls.key")
    tls = ServerTLS((folder / "tls.crt", folder / "tls.key"))
    task = asyncio.create_task(tls.run())
    yield tls
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.slow
async def test_replaced_certificate_is_served_and_half_a_replacement_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with watching(tmp_path, monkeypatch) as tls:
        tls.trust(CertificateAuthority.create().certificate)
        assert handshake(tls)[0] == der(FIRST)
        (tmp_path / "tls.crt").write_bytes(SECOND.certificate)  # the key follows later
        await until("the pair is found wrong", lambda: "stays in use" in caplog.text)
        assert handshake(tls)[0] == der(FIRST)
        (tmp_path / "tls.key").write_bytes(SECOND.key)
        await until("the new certificate is served", lambda: handshake(tls)[0] == der(SECOND))


async def test_replacement_with_the_time_stamp_of_the_old_files_is_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of two writes within a tick of the kernel's clock."""
    async with watching(tmp_path, monkeypatch) as tls:
        for name, content in (("tls.key", SECOND.key), ("tls.crt", SECOND.certificate)):
            written = (tmp_path / name).stat()
            (tmp_path / name).write_bytes(content)
            os.utime(tmp_path / name, ns=(written.st_atime_ns, written.st_mtime_ns))
        await until("the new certificate is served", lambda: handshake(tls)[0] == der(SECOND))


def test_certificate_with_another_type_of_key_replaces_the_old_one(tmp_path: Path) -> None:
    """OpenSSL keeps one certificate for each type of key, and clients choose among them."""
    host = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    purposes = (ExtendedKeyUsageOID.SERVER_AUTH,)
    rsa = certificate(SERVER, named("guard"), usages=purposes, alternative_names=[host], rsa_key=True)
    tls = ServerTLS(None)
    for pair in (FIRST, rsa, SECOND, rsa):
        tls.use(pair)
        assert handshake(tls)[0] == der(pair)


def test_authority_with_a_new_key_under_the_same_name_replaces_the_old_one(tmp_path: Path) -> None:
    """The certificates here do not name the key of their authority, so only its name leads to it."""
    old, new = CertificateAuthority.create("clients"), CertificateAuthority.create("clients")
    FIRST.write(tmp_path / "tls.crt", tmp_path / "tls.key")
    tls = ServerTLS((tmp_path / "tls.crt", tmp_path / "tls.key"))
    for authority in (old, new):
        tls.trust(authority.certificate)
        client = certificate(authority, named("mimir"))
        assert handshake(tls, client) == (der(FIRST), der(client))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tls, certificate(old, named("mimir")))


def test_both_authorities_of_a_rotation_are_trusted(tmp_path: Path) -> None:
    old, new = CertificateAuthority.create("old"), CertificateAuthority.create("new")
    FIRST.write(tmp_path / "tls.crt", tmp_path / "tls.key")
    tls = ServerTLS((tmp_path / "tls.crt", tmp_path / "tls.key"))
    tls.trust(old.certificate + new.certificate)
    for authority in (old, new):
        client = certificate(authority, named("mimir"))
        assert handshake(tls, client)[1] == der(client)


@pytest.mark.parametrize("fault", UNUSABLE)
def test_authorities_that_cannot_be_used_change_nothing(fault: str) -> None:
    clients, tls = CertificateAuthority.create("clients"), ServerTLS(None)
    tls.use(FIRST)
    tls.trust(clients.certificate)
    with pytest.raises(ValueError, match=r"."):
        tls.trust(UNUSABLE[fault])
    client = certificate(clients, named("mimir"))
    assert handshake(tls, client)[1] == der(client)


def test_certificate_that_needs_a_full_disk_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The ssl module takes a key from files only."""
    tls = ServerTLS(None)
    tls.use(FIRST)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    with pytest.raises(ValueError, match="cannot be used"):
        tls.use(SECOND)
    monkeypatch.undo()
    assert handshake(tls)[0] == der(FIRST)


def test_encrypted_key_is_refused_without_a_question_at_the_terminal(tmp_path: Path) -> None:
    key = serialization.load_pem_private_key(FIRST.key, None)
    encrypted = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
    )
    KeyPair(FIRST.certificate, encrypted).write(tmp_path / "tls.crt", tmp_path / "tls.key")
    with pytest.raises(ConfigError, match="cannot be used"):
        ServerTLS((tmp_path / "tls.crt", tmp_path / "tls.key"))
