"""Reads the certificates of authorities from PEM files, which often have comments."""

from __future__ import annotations

import ssl
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"


def read_authorities(pem: bytes) -> list[x509.Certificate]:
    """Return the certificates, which OpenSSL can read too.

    Raises:
        ValueError: there is not a certificate in PEM form, the text ends within one, or one cannot be read.
    """
    try:
        found = x509.load_pem_x509_certificates(pem)
    except x509.InvalidVersion as error:
        raise ValueError(str(error)) from None
    if pem.count(_BEGIN) > len(found):
        raise ValueError("the text ends within a certificate")
    try:
        # The parsers differ: this one also reads the names.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=_der(found))
    except ssl.SSLError as error:
        raise ValueError(f"OpenSSL cannot read a certificate: {error}") from None
    return found


def authorities_der(pem: bytes) -> bytes:
    """Return the certificates in DER form, for `load_verify_locations`. Raises ValueError; see `read_authorities`.

    The ssl module takes PEM only as ASCII, but comments often have other characters.
    """
    return _der(read_authorities(pem))


def _der(certificates: list[x509.Certificate]) -> bytes:
    return b"".join(each.public_bytes(Encoding.DER) for each in certificates)
