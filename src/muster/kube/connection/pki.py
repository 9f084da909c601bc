"""Certificates for a cluster of our own: an authority, and the server and client certificates it signs.

Keys are ECDSA on P-256, which every Kubernetes component accepts and which are fast to create. Extensions
follow RFC 5280 closely enough for Python 3.13's strict verification (key identifiers, key usage on the authority).
"""

from __future__ import annotations

import dataclasses
import datetime
import ipaddress
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from muster.kube.connection.privatefile import write_private

DEFAULT_LIFETIME = datetime.timedelta(days=365)
CLOCK_SKEW = datetime.timedelta(minutes=5)
"""A certificate is valid from this long before its creation, because other machines' clocks may be behind."""


@dataclasses.dataclass(frozen=True)
class KeyPair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes = dataclasses.field(repr=False)

    def write(self, certificate_path: Path, key_path: Path) -> None:
        """Write both files. Only their owner can read the key, from its first byte on."""
        certificate_path.write_bytes(self.certificate)
        write_private(key_path, self.key)


@dataclasses.dataclass(frozen=True)
class CertificateAuthority:
    """A self-signed authority that issues certificates for one cluster."""

    pair: KeyPair

    @classmethod
    def create(
        cls,
        name: str = "muster-ca",
        lifetime: datetime.timedelta = 10 * DEFAULT_LIFETIME,
        skew: datetime.timedelta = CLOCK_SKEW,
    ) -> CertificateAuthority:
        """Create an authority with the subject `name`, valid from `skew` before now."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name, ())
        builder = (
            _builder(subject, subject, key.public_key(), key.public_key(), lifetime, skew)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(authority=True), critical=True)
        )
        return cls(_pair(builder.sign(key, hashes.SHA256()), key))

    @property
    def certificate(self) -> bytes:
        """The authority's certificate as PEM: what clients trust."""
        return self.pair.certificate

    def issue_server(
        self,
        name: str,
        hosts: Iterable[str],
        lifetime: datetime.timedelta = DEFAULT_LIFETIME,
        skew: datetime.timedelta = CLOCK_SKEW,
    ) -> KeyPair:
        """Issue a serving certificate for `hosts` (DNS names and IP addresses), valid from `skew` before now."""
        return self._issue(name, (), lifetime, [ExtendedKeyUsageOID.SERVER_AUTH], hosts, skew)

    def issue_peer(self, name: str, hosts: Iterable[str]) -> KeyPair:
        """Issue a certificate for `hosts` that is also a client certificate, as members of etcd need it."""
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return self._issue(name, (), DEFAULT_LIFETIME, purposes, hosts)

    def issue_client(self, user: str, groups: Iterable[str] = ()) -> KeyPair:
        """Issue a client certificate: Kubernetes takes the user from the common name and groups from organizations.

        Source: https://kubernetes.io/docs/reference/access-authn-authz/authentication/#x509-client-certificates
        """
        return self._issue(user, groups, DEFAULT_LIFETIME, [ExtendedKeyUsageOID.CLIENT_AUTH], ())

    def _issue(
        self,
        name: str,
        groups: Iterable[str],
        lifetime: datetime.timedelta,
        purposes: list[x509.ObjectIdentifier],
        hosts: Iterable[str],
        skew: datetime.timedelta = CLOCK_SKEW,
    ) -> KeyPair:
        authority = x509.load_pem_x509_certificate(self.pair.certificate)
        authority_key = serialization.load_pem_private_key(self.pair.key, password=None)
        if not isinstance(authority_key, ec.EllipticCurvePrivateKey):
            raise ValueError("the authority's key is not an elliptic-curve key; create the authority again")
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(
                _name(name, groups), authority.subject, key.public_key(), authority_key.public_key(), lifetime, skew
            )
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        )
        alternatives = [_general_name(host) for host in hosts]
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        return _pair(builder.sign(authority_key, hashes.SHA256()), key)


def new_signing_key() -> tuple[bytes, bytes]:
    """Return a new private key and its public key as PEM, for signing service account tokens."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return _private_pem(key), public


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    lifetime: datetime.timedelta,
    skew: datetime.timedelta,
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - skew)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=authority,
        crl_sign=authority,
        key_encipherment=False,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str, organizations: Iterable[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization) for organization in organizations]
    return x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    # SEC 1 rather than PKCS #8: kube-apiserver reads both, and so does every older tool.
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), _private_pem(key))
