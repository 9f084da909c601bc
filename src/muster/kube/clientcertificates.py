"""Authenticates client certificates that a given authority signed.

Source: k8s.io/apiserver, pkg/authentication/request/x509, and the rules of Go's crypto/x509 behind it. The TLS layer
has verified that the client holds the key. The authority must have signed the certificate itself: chains
with intermediate certificates are not accepted.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import ExtendedKeyUsageOID

from muster.kube.connection.authorities import read_authorities

T = TypeVar("T")

_CLIENT_USAGES: Final = {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE}
_WEAK: Final = (hashes.MD5, hashes.SHA1)
_VERIFIED_MAX: Final = 20_000


class InvalidCertificate(Exception):
    """The certificate does not prove an identity."""


@dataclass(frozen=True, slots=True)
class _Verified(Generic[T]):
    """A certificate with a good signature.

    Attributes:
        identity: what it proves.
        begins_at: seconds since the epoch from which it and its authority are valid.
        ends_at: the same, until which they are valid.
    """

    identity: T
    begins_at: float
    ends_at: float


class ClientAuthorities(Generic[T]):
    """The authorities whose client certificates are accepted.

    Args:
        identity: returns what a certificate with a good signature proves, from it and its SHA-256; may raise
            InvalidCertificate.
        wall_clock: seconds since the epoch, to which certificates refer.
    """

    def __init__(
        self, identity: Callable[[x509.Certificate, bytes], T], wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._identity = identity
        self.pem = b""
        """The authorities; empty if there are none, and then no certificate is valid."""
        self._wall_clock = wall_clock
        self._authorities: list[x509.Certificate] = []
        self._verified: OrderedDict[bytes, _Verified[T]] = OrderedDict()

    def replace(self, pem: bytes) -> bool:
        """Trust these authorities instead; returns whether they differ. Raises ValueError if they cannot be read."""
        if pem == self.pem:
            return False
        self._authorities = read_authorities(pem) if pem.strip() else []
        self.pem = pem
        self._verified.clear()
        return True

    def identify(self, certificate: bytes) -> T:
        """Return what a certificate in DER form proves.

        Raises:
            InvalidCertificate: it is not valid now, not for clients, or from another authority.
        """
        digest, now = hashlib.sha256(certificate).digest(), self._wall_clock()
        verified = self._verified.pop(digest, None)
        if verified is None or not verified.begins_at <= now <= verified.ends_at:
            verified = self._verify(certificate, digest, now)
        self._verified[digest] = verified
        if len(self._verified) > _VERIFIED_MAX:
            self._verified.popitem(last=False)
        return verified.identity

    def _verify(self, der: bytes, digest: bytes, now: float) -> _Verified[T]:
        try:
            certificate = x509.load_der_x509_certificate(der)
            extensions = certificate.extensions
        except (ValueError, x509.DuplicateExtension, x509.InvalidVersion, UnsupportedAlgorithm) as error:
            raise InvalidCertificate("it cannot be read") from error
        if any(each.critical and isinstance(each.value, x509.UnrecognizedExtension) for each in extensions):
            raise InvalidCertificate("it has a critical extension that is not known")
        if not _for_clients(certificate):
            raise InvalidCertificate("it is not for clients")
        signers = [authority for authority in self._authorities if _signed(certificate, authority)]
        if not signers:
            raise InvalidCertificate("no accepted authority signed it")
        for authority in signers:
            begins_at, ends_at = _validity(certificate, authority)
            if begins_at <= now <= ends_at:
                return _Verified(self._identity(certificate, digest), begins_at, ends_at)
        raise InvalidCertificate("it is not valid now")


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    if not _may_sign(authority) or isinstance(certificate.signature_hash_algorithm, _WEAK):
        return False
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def _may_sign(authority: x509.Certificate) -> bool:
    try:
        if not authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return False
    except x509.ExtensionNotFound:
        return False
    try:
        usage = authority.extensions.get_extension_for_class(x509.KeyUsage).value
    except x509.ExtensionNotFound:
        return _for_clients(authority)
    return usage.key_cert_sign and _for_clients(authority)


def _for_clients(certificate: x509.Certificate) -> bool:
    """Return whether the extended key usages, if there are any, include client authentication."""
    try:
        usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return True
    return bool(_CLIENT_USAGES & set(usages))


def _validity(certificate: x509.Certificate, authority: x509.Certificate) -> tuple[float, float]:
    both = (certificate, authority)
    begins, ends = max(each.not_valid_before_utc for each in both), min(each.not_valid_after_utc for each in both)
    return begins.timestamp(), ends.timestamp()


def subject_texts(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> list[str]:
    """Return the values of an attribute of the subject. Raises InvalidCertificate for a value that is not a text."""
    values = [attribute.value for attribute in certificate.subject.get_attributes_for_oid(oid)]
    if not all(isinstance(value, str) for value in values):
        raise InvalidCertificate("its subject has values that are not texts")
    return [str(value) for value in values]
