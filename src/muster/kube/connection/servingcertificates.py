"""Creates and renews the certificates of a server, which lie in a Secret.

`ca.crt` holds the authorities for clients to trust, newest first. `ca.key` is the key of the newest, which
signed `tls.crt`. A replaced authority stays in the list until it expires. So a replica that still serves one of its
certificates is trusted until then.
"""

from __future__ import annotations

import datetime
import ssl
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from muster.kube.connection.pki import CertificateAuthority, KeyPair

AUTHORITIES, AUTHORITY_KEY, CERTIFICATE, KEY = "ca.crt", "ca.key", "tls.crt", "tls.key"
LIFETIME: Final = datetime.timedelta(days=90)
AUTHORITY_LIFETIME: Final = datetime.timedelta(days=730)
SKEW: Final = datetime.timedelta(days=1)
"""A clock behind ours by at most this still accepts a new certificate."""
_AUTHORITIES_MAX: Final = 3
_NAME: Final = "muster"

Material = Mapping[str, bytes]


def why_renew(data: Material, hosts: Sequence[str], now: datetime.datetime) -> str:
    """Return why the certificates must be renewed now; "" if they are valid for at least a third of their lifetime."""
    return _authority_fault(data, now) or _serving_fault(data, hosts, now)


def renewed(data: Material, hosts: Sequence[str], now: datetime.datetime) -> dict[str, bytes]:
    """Create new certificates. The authority is kept while it is valid."""
    if _authority_fault(data, now):
        authority = CertificateAuthority.create(_NAME, AUTHORITY_LIFETIME, SKEW)
        older = [each for each in _certificates(data) if each.not_valid_after_utc > now][: _AUTHORITIES_MAX - 1]
        trusted = authority.certificate + b"".join(each.public_bytes(serialization.Encoding.PEM) for each in older)
    else:
        newest = _certificates(data)[0].public_bytes(serialization.Encoding.PEM)
        authority = CertificateAuthority(KeyPair(newest, data[AUTHORITY_KEY]))
        trusted = data[AUTHORITIES]
    pair = authority.issue_server(_NAME, hosts, LIFETIME, SKEW)
    return {
        AUTHORITIES: trusted,
        AUTHORITY_KEY: authority.pair.key,
        CERTIFICATE: pair.certificate,
        KEY: pair.key,
    }


def ends_at(data: Material) -> datetime.datetime:
    """Return when the serving certificate expires. Raises ValueError without one."""
    return x509.load_pem_x509_certificate(data[CERTIFICATE]).not_valid_after_utc


def load_pair(context: ssl.SSLContext, pair: KeyPair) -> None:
    """Serve new connections with this certificate; open connections stay.

    Raises:
        ValueError: the certificate and the key cannot be used, or the ssl module's files for them cannot be written.
            The context keeps what it had.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="muster-tls-") as folder:
            certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
            pair.write(certificate, key)
            # Without a password, OpenSSL would ask for that of an encrypted key at the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
            context.load_cert_chain(certificate, key)
    except OSError as error:  # SSLError is one
        raise ValueError(f"the certificate and its key cannot be used: {error}") from error


def _authority_fault(data: Material, now: datetime.datetime) -> str:
    authorities = _certificates(data)
    if not authorities:
        return f"there is no certificate in {AUTHORITIES}"
    if not _belongs(authorities[0], data.get(AUTHORITY_KEY, b"")):
        return f"{AUTHORITY_KEY} is not the key of {AUTHORITIES}"
    return _time_fault(authorities[0], AUTHORITIES, now)


def _serving_fault(data: Material, hosts: Sequence[str], now: datetime.datetime) -> str:
    try:
        certificate = x509.load_pem_x509_certificate(data.get(CERTIFICATE, b""))
    except ValueError:
        return f"there is no certificate in {CERTIFICATE}"
    if not _belongs(certificate, data.get(KEY, b"")):
        return f"{KEY} is not the key of {CERTIFICATE}"
    try:
        certificate.verify_directly_issued_by(_certificates(data)[0])
    except (ValueError, TypeError, InvalidSignature):
        return f"{CERTIFICATE} is not signed by {AUTHORITIES}"
    missing = sorted(set(hosts) - _hosts(certificate))
    if missing:
        return f"{CERTIFICATE} is not for {', '.join(missing)}"
    return _time_fault(certificate, CERTIFICATE, now)


def _time_fault(certificate: x509.Certificate, name: str, now: datetime.datetime) -> str:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < begin:  # created by a clock that was ahead
        return f"{name} is valid only from {begin:%Y-%m-%d %H:%M} on"
    if now >= end:
        return f"{name} ended at {end:%Y-%m-%d %H:%M}"
    return f"{name} ends at {end:%Y-%m-%d %H:%M}" if now > end - (end - begin) / 3 else ""


def _certificates(data: Material) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(data.get(AUTHORITIES, b""))
    except ValueError:
        return []


def _belongs(certificate: x509.Certificate, key: bytes) -> bool:
    try:
        return serialization.load_pem_private_key(key, None).public_key() == certificate.public_key()
    except (ValueError, TypeError):
        return False


def _hosts(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    addresses = names.get_values_for_type(x509.IPAddress)
    return {*names.get_values_for_type(x509.DNSName), *(str(each) for each in addresses)}
