"""Client certificates with faults of all kinds."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from muster.kube.connection.pki import CertificateAuthority, KeyPair

UID = x509.ObjectIdentifier("1.3.6.1.4.1.57683.2")
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH
HOUR = datetime.timedelta(hours=1)


def certificate(
    authority: CertificateAuthority,
    names: Sequence[tuple[x509.ObjectIdentifier, str]],
    *,
    usages: Sequence[x509.ObjectIdentifier] | None = (CLIENT,),
    begins: datetime.timedelta = -HOUR,
    ends: datetime.timedelta = HOUR,
    critical: bool = False,
    signs: bool = False,
    alternative_names: Sequence[x509.GeneralName] = (),
    rsa_key: bool = False,
) -> KeyPair:
    """A certificate of this authority.

    Args:
        authority: signs it.
        names: its subject.
        usages: extended key usages; None for no such extension.
        begins: beginning of validity, from now.
        ends: end of validity, from now.
        critical: whether it has a critical extension that no program knows.
        signs: whether it is an authority itself.
        alternative_names: its subject alternative names.
        rsa_key: whether its key is one of RSA instead of an elliptic curve.
    """
    key = rsa.generate_private_key(65537, 2048) if rsa_key else ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)
    issuer = x509.load_pem_x509_certificate(authority.pair.certificate)
    issuer_key = serialization.load_pem_private_key(authority.pair.key, password=None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(oid, text, _validate=False) for oid, text in names]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
        .add_extension(x509.BasicConstraints(ca=signs, path_length=None), critical=True)
    )
    if usages is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if alternative_names:
        builder = builder.add_extension(x509.SubjectAlternativeName(alternative_names), critical=False)
    if critical:
        unknown = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.57683.99"), b"\x05\x00")
        builder = builder.add_extension(unknown, critical=True)
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return KeyPair(builder.sign(issuer_key, hashes.SHA256()).public_bytes(pem), private)


def named(name: str, *groups: str) -> list[tuple[x509.ObjectIdentifier, str]]:
    """A subject as Kubernetes reads it: the user's name, and groups."""
    return [*((NameOID.ORGANIZATION_NAME, group) for group in groups), (NameOID.COMMON_NAME, name)]


def der(pair: KeyPair) -> bytes:
    """The certificate as the TLS layer gives it."""
    return x509.load_pem_x509_certificate(pair.certificate).public_bytes(serialization.Encoding.DER)


def with_version_8(der: bytes) -> bytes:
    """The certificate, as one of a version that does not exist."""
    return der.replace(bytes.fromhex("a003020102"), bytes.fromhex("a003020107"), 1)


def unusable_authorities() -> dict[str, bytes]:
    """Authorities that cannot be used, by their fault."""
    whole = CertificateAuthority.create("an authority").certificate
    content = ssl.PEM_cert_to_DER_cert(whole.decode())
    return {
        "not-a-certificate": b"-----BEGIN CERTIFICATE-----\nxx\n",
        "half-written": whole + whole[: len(whole) // 2],
        "version": ssl.DER_cert_to_PEM_cert(with_version_8(content)).encode(),
        "name": ssl.DER_cert_to_PEM_cert(
            content.replace(b"an authority", b"an \xff\xfe\xfd\xff\xfe\xfd\xff\xfe\xfd")
        ).encode(),
    }
