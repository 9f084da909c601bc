"""Names in client certificates, and the callers that they identify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.x509.oid import NameOID

from muster.kube.clientcertificates import InvalidCertificate, subject_texts
from muster.telemetry.guard.callers.config import CertificateCaller


@dataclass(frozen=True, slots=True)
class CertificateNames:
    """The names of a verified certificate.

    Attributes:
        common_name: of the subject; "" if it has none or several.
        dns: DNS names in lower case.
        uris: URIs, such as SPIFFE IDs.
    """

    common_name: str
    dns: frozenset[str]
    uris: frozenset[str]


def names_of(certificate: x509.Certificate, digest: bytes) -> CertificateNames:
    """Return the names. Raises InvalidCertificate if they cannot be read."""
    common_names = subject_texts(certificate, NameOID.COMMON_NAME)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    except ValueError as error:
        raise InvalidCertificate("its alternative names cannot be read") from error
    return CertificateNames(
        common_names[0] if len(common_names) == 1 else "",
        frozenset(name.lower() for name in names.get_values_for_type(x509.DNSName)),
        frozenset(names.get_values_for_type(x509.UniformResourceIdentifier)),
    )


def matching(names: CertificateNames, callers: Sequence[CertificateCaller]) -> CertificateCaller | None:
    """Return the first caller whose given names are all in the certificate."""
    for caller in callers:
        if caller.common_name and caller.common_name != names.common_name:
            continue
        if caller.dns and caller.dns.lower() not in names.dns:
            continue
        if caller.uri and caller.uri not in names.uris:
            continue
        return caller
    return None
