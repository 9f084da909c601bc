"""Certificates do what they are for in a TLS handshake, and nothing else."""

import ssl
from pathlib import Path

import pytest
from cryptography import x509

from muster.kube.connection.pki import CertificateAuthority, KeyPair, new_signing_key
from muster.kube.connection.privatefile import write_private

AUTHORITY = CertificateAuthority.create("test-ca")


def context(purpose: ssl.Purpose, trusted: bytes, pair: KeyPair | None, folder: Path) -> ssl.SSLContext:
    made = ssl.create_default_context(purpose, cadata=trusted.decode())
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.verify_mode = ssl.CERT_REQUIRED
    if pair is not None:
        pair.write(folder / "tls.crt", folder / "tls.key")
        made.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return made


def handshake(
    folder: Path, server: KeyPair, client: KeyPair, *, host: str = "127.0.0.1", trusted: bytes = AUTHORITY.certificate
) -> tuple[str, ...]:
    """Shake hands in memory and return the client's subject values as the server sees them."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client_context = context(ssl.Purpose.SERVER_AUTH, trusted, client, folder)
    server_context = context(ssl.Purpose.CLIENT_AUTH, trusted, server, folder)
    ends = [
        client_context.wrap_bio(to_client, to_server, server_hostname=host),
        server_context.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = ends[1].getpeercert(binary_form=True)
    assert certificate is not None
    return tuple(str(attribute.value) for attribute in x509.load_der_x509_certificate(certificate).subject)


@pytest.mark.parametrize("host", ["127.0.0.1", "kubernetes.default.svc"])
def test_server_and_client_know_each_other(tmp_path: Path, host: str) -> None:
    server = AUTHORITY.issue_server("api", ["127.0.0.1", "kubernetes.default.svc"])
    client = AUTHORITY.issue_client("alice", ["team-a", "team-b"])
    assert handshake(tmp_path, server, client, host=host) == ("team-a", "team-b", "alice")


def test_server_is_refused_under_a_name_it_does_not_hold(tmp_path: Path) -> None:
    server, client = AUTHORITY.issue_server("api", ["127.0.0.1"]), AUTHORITY.issue_client("alice")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(tmp_path, server, client, host="127.0.0.2")


def test_client_certificate_cannot_serve_and_server_certificate_cannot_be_a_client(tmp_path: Path) -> None:
    server, client = AUTHORITY.issue_server("api", ["127.0.0.1"]), AUTHORITY.issue_client("alice")
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        handshake(tmp_path, client, client)
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        handshake(tmp_path, server, server)


def test_peer_certificate_does_both(tmp_path: Path) -> None:
    peer = AUTHORITY.issue_peer("etcd", ["127.0.0.1"])
    assert handshake(tmp_path, peer, peer) == ("etcd",)


def test_another_authority_is_not_trusted(tmp_path: Path) -> None:
    server, client = AUTHORITY.issue_server("api", ["127.0.0.1"]), AUTHORITY.issue_client("alice")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, server, client, trusted=CertificateAuthority.create("test-ca").certificate)


def test_private_keys_are_for_their_owner_only_and_not_in_representations(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("an older one that everybody may read")
    path.chmod(0o666)
    private, public = new_signing_key()
    write_private(path, private)
    assert path.stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE" in path.read_bytes()
    assert b"PRIVATE" not in public
    assert "PRIVATE" not in repr(AUTHORITY)
