"""Users of the cluster in client certificates.

Source: k8s.io/apiserver, pkg/authentication/request/x509.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from cryptography import x509
from cryptography.x509.oid import NameOID

from muster.kube.clientcertificates import ClientAuthorities, InvalidCertificate, subject_texts
from muster.kube.objects.auth import UserInfo
from muster.readcache.access.user import User, with_authenticated_group

_UID: Final = x509.ObjectIdentifier("1.3.6.1.4.1.57683.2")
_CREDENTIAL_ID: Final = "authentication.kubernetes.io/credential-id"

ClusterAuthorities = ClientAuthorities[User | None]
"""Authorities of the cluster. A certificate without a common name is valid, and has the user None."""


def cluster_authorities(wall_clock: Callable[[], float] = time.time) -> ClusterAuthorities:
    """Return authorities that identify users of the cluster; `replace` gives them their certificates."""
    return ClientAuthorities(_user, wall_clock)


def _user(certificate: x509.Certificate, digest: bytes) -> User | None:
    """Return the user: the common name, with the organizations as groups."""
    names = subject_texts(certificate, NameOID.COMMON_NAME)
    if not names or not names[-1]:
        return None
    uids = subject_texts(certificate, _UID)
    if len(uids) > 1 or "" in uids:
        raise InvalidCertificate("it has several user IDs, or an empty one")
    info = UserInfo(
        username=names[-1],
        uid=uids[0] if uids else "",
        groups=tuple(subject_texts(certificate, NameOID.ORGANIZATION_NAME)),
        extra={_CREDENTIAL_ID: (f"X509SHA256={digest.hex()}",)},
    )
    return User(with_authenticated_group(info))
