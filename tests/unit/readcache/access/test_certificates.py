"""Issue 15 A3: a client certificate is verified for each request, also on a connection that was opened earlier."""

from __future__ import annotations

import time

import pytest

from muster.kube.clientcertificates import InvalidCertificate
from muster.kube.connection.pki import CertificateAuthority
from muster.readcache.access.certificates import ClusterAuthorities, cluster_authorities
from tests.support.clientcertificates import HOUR, certificate, der, named

ONE, OTHER = CertificateAuthority.create("one"), CertificateAuthority.create("other")
ALICE = der(certificate(ONE, named("alice", "readers")))


STARTED = time.time()
"""The certificates begin then: the tests themselves may run much later."""


class WallClock:
    def __init__(self) -> None:
        self.now = STARTED

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> WallClock:
    return WallClock()


@pytest.fixture
def authorities(clock: WallClock) -> ClusterAuthorities:
    authorities = cluster_authorities(clock)
    authorities.replace(OTHER.certificate + ONE.certificate)
    return authorities


def test_user_groups_and_fingerprint(authorities: ClusterAuthorities) -> None:
    user = authorities.identify(ALICE)
    assert user is not None
    assert (user.name, user.info.groups) == ("alice", ("readers", "system:authenticated"))
    assert [len(text) for text in user.info.extra["authentication.kubernetes.io/credential-id"]] == [75]


def test_certificate_expires_while_its_connection_is_open(authorities: ClusterAuthorities, clock: WallClock) -> None:
    assert authorities.identify(ALICE) is not None
    clock.now += HOUR.total_seconds() - 600
    assert authorities.identify(ALICE) is not None
    clock.now += 700
    with pytest.raises(InvalidCertificate):
        authorities.identify(ALICE)


def test_certificate_is_valid_until_its_authority_expires(clock: WallClock) -> None:
    short = CertificateAuthority.create("short", lifetime=HOUR / 2)
    clock.now = time.time()
    authorities = cluster_authorities(clock)
    authorities.replace(short.certificate)
    alice = der(certificate(short, named("alice")))
    assert authorities.identify(alice) is not None
    clock.now += HOUR.total_seconds() / 2 + 5
    with pytest.raises(InvalidCertificate):
        authorities.identify(alice)


def test_certificate_of_a_removed_authority_is_refused(authorities: ClusterAuthorities) -> None:
    assert authorities.identify(ALICE) is not None
    assert authorities.replace(OTHER.certificate)
    with pytest.raises(InvalidCertificate):
        authorities.identify(ALICE)


def test_unreadable_authorities_leave_the_present_ones(authorities: ClusterAuthorities) -> None:
    with pytest.raises(ValueError, match="PEM"):
        authorities.replace(b"-----BEGIN CERTIFICATE-----\nx\n")
    assert authorities.identify(ALICE) is not None
    assert not authorities.replace(OTHER.certificate + ONE.certificate)


@pytest.mark.parametrize("garbage", [b"", b"x", ALICE[:-1], ALICE[:40] + b"\0" + ALICE[41:]])
def test_garbage_is_refused(authorities: ClusterAuthorities, garbage: bytes) -> None:
    with pytest.raises(InvalidCertificate):
        authorities.identify(garbage)


def test_no_authorities_accept_no_certificate(clock: WallClock) -> None:
    authorities = cluster_authorities(clock)
    with pytest.raises(InvalidCertificate):
        authorities.identify(ALICE)
    assert not authorities.replace(b"")
