"""Certificates are renewed in time, and whatever is wrong with them is mended."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from muster.kube.connection.pki import CertificateAuthority, KeyPair
from muster.kube.connection.servingcertificates import AUTHORITY_LIFETIME, LIFETIME, ends_at, renewed, why_renew

HOSTS = ("muster-admission.muster-system.svc", "127.0.0.1")
NOW = datetime.now(UTC)
GOOD = renewed({}, HOSTS, NOW)


def trusted(folder: Path, bundle: bytes, pair: KeyPair, host: str = HOSTS[0]) -> bool:
    """Whether a user who trusts the bundle takes the certificate, as a TLS handshake in memory shows."""
    pair.write(folder / "tls.crt", folder / "tls.key")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    client = ssl.create_default_context(cadata=bundle.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    try:
        for _ in range(10):
            for end in ends:
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLCertVerificationError:
        return False
    return True


def pair_of(data: dict[str, bytes]) -> KeyPair:
    return KeyPair(data["tls.crt"], data["tls.key"])


def authorities(data: dict[str, bytes]) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(data["ca.crt"])


def test_new_ones_will_do_under_every_name(tmp_path: Path) -> None:
    assert why_renew(GOOD, HOSTS, NOW) == ""
    assert all(trusted(tmp_path, GOOD["ca.crt"], pair_of(GOOD), host) for host in HOSTS)
    assert not trusted(tmp_path, GOOD["ca.crt"], pair_of(GOOD), "elsewhere")


def test_clocks_that_are_a_day_apart_take_them() -> None:
    (authority,) = authorities(GOOD)
    leaf = x509.load_pem_x509_certificate(GOOD["tls.crt"])
    for each in (authority, leaf):
        assert each.not_valid_before_utc < NOW - timedelta(hours=23)
        assert each.not_valid_after_utc > NOW + timedelta(days=1)


@pytest.mark.parametrize("after", [LIFETIME * 3 / 4, LIFETIME, LIFETIME * 2])
def test_a_certificate_that_ends_is_replaced_by_one_of_the_same_authority(after: timedelta) -> None:
    assert "tls.crt end" in why_renew(GOOD, HOSTS, NOW + after)
    newer = renewed(GOOD, HOSTS, NOW + after)
    assert newer["ca.crt"] == GOOD["ca.crt"]
    assert newer["tls.crt"] != GOOD["tls.crt"]
    assert why_renew(newer, HOSTS, NOW) == ""


def test_half_of_its_life_it_stays() -> None:
    assert why_renew(GOOD, HOSTS, NOW + LIFETIME / 2) == ""


def test_an_authority_that_ends_is_trusted_beside_its_successor(tmp_path: Path) -> None:
    late = NOW + AUTHORITY_LIFETIME * 3 / 4
    assert "ca.crt ends" in why_renew(GOOD, HOSTS, late)
    newer = renewed(GOOD, HOSTS, late)
    assert len(authorities(newer)) == 2
    assert trusted(tmp_path, newer["ca.crt"], pair_of(newer))
    assert trusted(tmp_path, newer["ca.crt"], pair_of(GOOD)), "a replica may serve the old one a moment longer"
    assert not trusted(tmp_path, GOOD["ca.crt"], pair_of(newer))


def test_an_authority_that_has_ended_is_no_longer_trusted() -> None:
    assert len(authorities(renewed(GOOD, HOSTS, NOW + AUTHORITY_LIFETIME * 2))) == 1


def test_authorities_do_not_pile_up() -> None:
    data = GOOD
    for _ in range(5):
        data = renewed({**data, "ca.key": b""}, HOSTS, NOW)
    assert len(authorities(data)) == 3


def test_one_made_by_a_clock_that_was_ahead_is_replaced() -> None:
    assert "valid only from" in why_renew(GOOD, HOSTS, NOW - timedelta(days=2))


OTHER = renewed({}, HOSTS, NOW)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"ca.crt": b""}, "no certificate in ca.crt"),
        ({"ca.crt": b"nonsense"}, "no certificate in ca.crt"),
        ({"ca.key": OTHER["ca.key"]}, "ca.key is not the key"),
        ({"ca.key": b"nonsense"}, "ca.key is not the key"),
        ({"tls.crt": b"nonsense"}, "no certificate in tls.crt"),
        ({"tls.key": OTHER["tls.key"]}, "tls.key is not the key"),
        ({"tls.key": b""}, "tls.key is not the key"),
        ({"tls.crt": OTHER["tls.crt"], "tls.key": OTHER["tls.key"]}, "not signed by ca.crt"),
    ],
)
def test_damaged_certificate_is_repaired(changed: dict[str, bytes], why: str) -> None:
    damaged = {**GOOD, **changed}
    assert why in why_renew(damaged, HOSTS, NOW)
    assert why_renew(renewed(damaged, HOSTS, NOW), HOSTS, NOW) == ""


def test_a_name_that_is_missing_needs_another_certificate() -> None:
    assert "is not for 10.0.0.9, webhook.example" in why_renew(GOOD, (*HOSTS, "webhook.example", "10.0.0.9"), NOW)


def test_its_end_is_known() -> None:
    assert abs(ends_at(GOOD) - (NOW + LIFETIME)) < timedelta(minutes=5)


def test_certificate_without_names_serves_no_host() -> None:
    authority = CertificateAuthority.create("x", timedelta(days=100))
    pair = authority.issue_server("x", ())
    data = {
        "ca.crt": authority.certificate,
        "ca.key": authority.pair.key,
        "tls.crt": pair.certificate,
        "tls.key": pair.key,
    }
    assert "is not for" in why_renew(data, HOSTS, datetime.now(UTC))
