"""Issue 17 A3: callers are known by token, certificate, or a header of configured peers; nothing forged is believed."""

from __future__ import annotations

import hashlib
from base64 import b64encode

import pytest
from cryptography import x509
from multidict import CIMultiDict

from muster.kube.connection.pki import CertificateAuthority
from muster.kube.errors import BadConfig
from muster.telemetry.guard.callers.caller import Caller, NotIdentified, Peer
from muster.telemetry.guard.callers.callers import Callers
from muster.telemetry.guard.config import GuardConfig, parse_config
from tests.support.clientcertificates import HOUR, certificate, der, named, unusable_authorities, with_version_8

AUTHORITY, OTHER = CertificateAuthority.create("guard"), CertificateAuthority.create("other")
UNUSABLE = unusable_authorities()
GRAFANA_TOKEN, RULER_TOKEN = "grafana-token-with-128-bits", "ruler-token-with-128-bits"
GRAFANA = Peer("10.0.0.7")
STRANGER = Peer("10.9.9.9")


def sha256(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


CONFIG = f"""
upstream: {{url: http://prometheus:9090}}
tls: {{certificateFile: /tls.crt, keyFile: /tls.key}}
groups: {{people: {{}}, programs: {{}}}}
callers:
  tokens:
  - {{name: grafana, sha256: {sha256(GRAFANA_TOKEN)}, group: programs, tenant: team-a}}
  - {{name: ruler, sha256: {sha256(RULER_TOKEN)}, group: programs, tenant: team-b}}
  certificates:
    caFile: /ca.crt
    callers:
    - {{name: mimir, commonName: mimir, uri: "spiffe://here/mimir", group: programs}}
    - {{name: edge, dns: Edge.example.com, group: people}}
  peers:
  - {{name: grafana, caller: grafana, addresses: [10.0.0.0/8, "fd00::/8"], group: people, tenant: team-a}}
  - {{name: kiosk, addresses: [192.0.2.1], userHeader: X-Kiosk-User, group: people}}
"""


def config(text: str = CONFIG, **changes: str) -> GuardConfig:
    for old, new in changes.items():
        text = text.replace(old, new)
    return parse_config(text)


@pytest.fixture
async def callers() -> Callers:
    return Callers(config(), authorities_pem=AUTHORITY.certificate)


def bearer(token: str, *more: tuple[str, str]) -> CIMultiDict[str]:
    return CIMultiDict([("Authorization", f"Bearer {token}"), *more])


async def refused(callers: Callers, peer: Peer, headers: CIMultiDict[str]) -> NotIdentified:
    with pytest.raises(NotIdentified) as caught:
        await callers.identify(peer, headers)
    assert callers.refused[caught.value.reason] >= 1
    return caught.value


async def test_token_identifies_its_caller(callers: Callers) -> None:
    caller = await callers.identify(STRANGER, bearer(GRAFANA_TOKEN))
    assert (caller.name, caller.how, caller.group, caller.label) == ("grafana", "token", "programs", "grafana")
    assert caller.headers == (("X-Scope-OrgID", "team-a"),)


async def test_basic_authentication_carries_the_name_and_the_token(callers: Callers) -> None:
    def basic(user: str, password: str) -> CIMultiDict[str]:
        return CIMultiDict({"authorization": "Basic " + b64encode(f"{user}:{password}".encode()).decode()})

    assert (await callers.identify(STRANGER, basic("ruler", RULER_TOKEN))).name == "ruler"
    assert (await refused(callers, STRANGER, basic("grafana", RULER_TOKEN))).status == 401


@pytest.mark.parametrize(
    "values",
    [
        ["Bearer wrong"],
        ["Bearer"],
        ["Bearer  "],
        ["Basic not-base64"],
        ["Basic " + b64encode(b"no-colon").decode()],
        ["Basic " + b64encode(b"\xff:\xff").decode()],
        ["Digest username=grafana"],
        [f"Bearer {sha256(GRAFANA_TOKEN)}"],
        [f"Bearer {GRAFANA_TOKEN}", f"Bearer {RULER_TOKEN}"],
        ["Bearer \udcff"],
    ],
)
async def test_wrong_credentials_are_refused_and_not_repeated(callers: Callers, values: list[str]) -> None:
    error = await refused(callers, GRAFANA, CIMultiDict([("Authorization", value) for value in values]))
    assert (error.status, error.reason) == (401, "bad_credentials")
    assert "token-with" not in str(error)


async def test_wrong_credentials_do_not_become_anonymous() -> None:
    callers = Callers(config(CONFIG.replace("callers:\n", "callers:\n  anonymous: people\n", 1)))
    assert (await callers.identify(STRANGER, CIMultiDict())).how == "anonymous"
    assert (await refused(callers, STRANGER, bearer("wrong"))).status == 401
    callers.replace(config(CONFIG.replace("callers:\n", "callers:\n  anonymous: people\n", 1)), AUTHORITY.certificate)
    assert (await refused(callers, Peer("10.1.1.1", mimir(OTHER)), CIMultiDict())).reason == "bad_credentials"


async def test_no_credentials_are_refused_by_default(callers: Callers) -> None:
    error = await refused(callers, STRANGER, CIMultiDict())
    assert (error.status, error.reason) == (401, "no_credentials")


async def test_peer_names_its_user(callers: Callers) -> None:
    caller = await callers.identify(GRAFANA, bearer(GRAFANA_TOKEN, ("x-grafana-user", "alice@example.com")))
    assert (caller.name, caller.how, caller.group) == ("grafana/alice@example.com", "header", "people")
    assert caller.label == "grafana/*"
    assert caller.tenant == "team-a"


async def test_peer_without_the_header_is_itself(callers: Callers) -> None:
    """Grafana sends no header for its alert rules and for anonymous users."""
    for more in ((), (("X-Grafana-User", ""),), (("X-Grafana-User", "  "),)):
        caller = await callers.identify(GRAFANA, bearer(GRAFANA_TOKEN, *more))
        assert (caller.name, caller.group) == ("grafana", "programs")
    kiosk = await callers.identify(Peer("192.0.2.1"), CIMultiDict())
    assert (kiosk.name, kiosk.how, kiosk.group) == ("kiosk", "header", "people")


@pytest.mark.parametrize(
    ("peer", "headers"),
    [
        (STRANGER, {"X-Grafana-User": "alice"}),
        (GRAFANA, {"X-Grafana-User": "alice"}),
        (STRANGER, {"Authorization": f"Bearer {RULER_TOKEN}", "X-Grafana-User": "alice"}),
        (GRAFANA, {"Authorization": f"Bearer {RULER_TOKEN}", "x-GRAFANA-user": "alice"}),
        (Peer("192.0.2.9"), {"Authorization": f"Bearer {GRAFANA_TOKEN}", "X-Grafana-User": "alice"}),
        (Peer("192.0.2.1"), {"X-Kiosk-User": "a", "X-Grafana-User": "alice"}),
        (GRAFANA, {"Authorization": f"Bearer {GRAFANA_TOKEN}", "X-Kiosk-User": "alice"}),
        (STRANGER, {"X-Kiosk-User": "a", "X-Forwarded-For": "192.0.2.1", "Forwarded": "for=192.0.2.1"}),
        (STRANGER, {"X-Kiosk-User": "a", "X-Real-IP": "192.0.2.1"}),
        (Peer(""), {"X-Kiosk-User": "a"}),
        (Peer("not an address"), {"X-Kiosk-User": "a"}),
    ],
)
async def test_forged_header_is_refused(callers: Callers, peer: Peer, headers: dict[str, str]) -> None:
    error = await refused(callers, peer, CIMultiDict(headers))
    assert (error.status, error.reason) == (403, "forged_header")
    assert "alice" not in str(error)


async def test_repeated_header_is_refused(callers: Callers) -> None:
    """A user may have added the header to a request that Grafana passed on."""
    twice = (("X-Grafana-User", "alice"), ("x-grafana-user", "admin"))
    assert (await refused(callers, GRAFANA, bearer(GRAFANA_TOKEN, *twice))).reason == "repeated_header"


@pytest.mark.parametrize("address", ["::ffff:10.0.0.7", "fd00::1", "fd00::1%eth0"])
async def test_peer_is_known_by_all_forms_of_its_address(callers: Callers, address: str) -> None:
    headers = bearer(GRAFANA_TOKEN, ("X-Grafana-User", "alice"))
    assert (await callers.identify(Peer(address), headers)).name == "grafana/alice"


async def test_users_have_printable_names_that_stay_distinct(callers: Callers) -> None:
    users = ["a\x1b[31m", "a\\x1b[31m", "é", "\udce9", "a/b", "a b", "A", "a"]
    names = [(await callers.identify(GRAFANA, bearer(GRAFANA_TOKEN, ("X-Grafana-User", user)))).name for user in users]
    assert len(set(names)) == len(users)
    assert all(name.isascii() and name.isprintable() for name in names)
    long = bearer(GRAFANA_TOKEN, ("X-Grafana-User", "x" * 257))
    assert (await refused(callers, GRAFANA, long)).reason == "long_header"


async def test_tenant_is_fixed_by_the_configuration(callers: Callers) -> None:
    same = await callers.identify(GRAFANA, bearer(GRAFANA_TOKEN, ("x-scope-orgid", "team-a")))
    assert same.headers == (("X-Scope-OrgID", "team-a"),)
    for wanted in ("team-b", "team-a|team-b", ""):
        error = await refused(callers, GRAFANA, bearer(GRAFANA_TOKEN, ("X-Scope-OrgID", wanted)))
        assert (error.status, error.reason) == (403, "other_tenant")
    both = bearer(GRAFANA_TOKEN, ("X-Scope-OrgID", "team-a"), ("X-Scope-OrgID", "team-b"))
    assert (await refused(callers, GRAFANA, both)).reason == "other_tenant"
    without = await refused(callers, Peer("192.0.2.1"), CIMultiDict({"X-Scope-OrgID": "team-b"}))
    assert (without.status, without.reason) == (403, "other_tenant")


async def test_only_equal_upstream_credentials_have_equal_keys(callers: Callers) -> None:
    grafana = await callers.identify(GRAFANA, bearer(GRAFANA_TOKEN))
    alice = await callers.identify(GRAFANA, bearer(GRAFANA_TOKEN, ("X-Grafana-User", "alice")))
    ruler = await callers.identify(STRANGER, bearer(RULER_TOKEN))
    assert grafana.credentials_key == alice.credentials_key != ruler.credentials_key
    callers.replace(config(CONFIG.replace("9090}", "9090, passAuthorization: true}")), AUTHORITY.certificate)
    keys = {
        (await callers.identify(STRANGER, headers)).credentials_key
        for headers in (
            bearer(GRAFANA_TOKEN),
            bearer(RULER_TOKEN),
            CIMultiDict({"Authorization": f"bearer  {RULER_TOKEN}"}),
        )
    }
    assert len(keys) == 3
    assert ruler.credentials_key not in keys


async def test_authorization_is_passed_only_if_configured(callers: Callers) -> None:
    assert "Authorization" not in dict((await callers.identify(STRANGER, bearer(RULER_TOKEN))).headers)
    callers.replace(config(CONFIG.replace("9090}", "9090, passAuthorization: true}")))
    passed = await callers.identify(STRANGER, bearer(RULER_TOKEN))
    assert dict(passed.headers)["Authorization"] == f"Bearer {RULER_TOKEN}"
    assert RULER_TOKEN not in repr(passed)


async def test_upstream_alone_may_check_tokens() -> None:
    text = "upstream: {url: http://mimir:80, passAuthorization: true}\ncallers: {anonymous: default}\n"
    callers = Callers(parse_config(text))
    one, two = [await callers.identify(STRANGER, bearer(token)) for token in ("one", "ONE")]
    assert one.how == two.how == "anonymous"
    assert one.credentials_key != two.credentials_key
    twice = CIMultiDict([("Authorization", "Bearer one"), ("Authorization", "Bearer two")])
    assert (await refused(callers, STRANGER, twice)).status == 401


def mimir(
    authority: CertificateAuthority = AUTHORITY,
    uri: str = "spiffe://here/mimir",
    common_name: str = "mimir",
    **options: object,
) -> bytes:
    names = [x509.UniformResourceIdentifier(uri)] if uri else []
    return der(certificate(authority, named(common_name), alternative_names=names, **options))  # type: ignore[arg-type]


async def test_certificate_identifies_its_caller(callers: Callers) -> None:
    caller = await callers.identify(Peer("10.1.1.1", mimir()), CIMultiDict())
    assert (caller.name, caller.how, caller.group) == ("mimir", "certificate", "programs")
    edge = certificate(AUTHORITY, named("any"), alternative_names=[x509.DNSName("edge.example.com")])
    assert (await callers.identify(Peer("10.1.1.1", der(edge)), CIMultiDict())).name == "edge"


async def test_certificate_has_precedence_over_a_token(callers: Callers) -> None:
    assert (await callers.identify(Peer("10.1.1.1", mimir()), bearer(RULER_TOKEN))).name == "mimir"
    assert (await callers.identify(Peer("10.1.1.1", mimir(OTHER)), bearer(RULER_TOKEN))).name == "ruler"


@pytest.mark.parametrize(
    "presented",
    [
        mimir(OTHER),
        mimir(ends=-HOUR / 2),
        mimir(uri=""),
        mimir(uri="spiffe://here/mimir2"),
        mimir(common_name="mimir2"),
        b"not a certificate",
        with_version_8(mimir()),
    ],
    ids=["other-authority", "expired", "no-uri", "other-uri", "other-name", "garbage", "version"],
)
async def test_certificate_that_is_not_valid_is_refused(callers: Callers, presented: bytes) -> None:
    assert (await refused(callers, Peer("10.1.1.1", presented), CIMultiDict())).status == 401


@pytest.mark.parametrize("fault", UNUSABLE)
async def test_authorities_that_cannot_be_read_change_nothing(callers: Callers, fault: str) -> None:
    with pytest.raises(BadConfig, match="caFile cannot be read"):
        callers.replace(config(CONFIG.replace("name: ruler", "name: loki")), UNUSABLE[fault])
    assert (await callers.identify(STRANGER, bearer(RULER_TOKEN))).name == "ruler"
    assert (await callers.identify(Peer("10.1.1.1", mimir()), CIMultiDict())).name == "mimir"


async def test_caller_that_is_remembered_is_not_that_of_another_request(callers: Callers) -> None:
    user = ("X-Grafana-User", "alice")
    for _ in range(2):
        alice = await callers.identify(GRAFANA, bearer(GRAFANA_TOKEN, user))
        assert (alice.name, alice.tenant) == ("grafana/alice", "team-a")
        for peer, headers, status in (
            (Peer("192.0.2.7"), bearer(GRAFANA_TOKEN, user), 403),
            (GRAFANA, bearer(RULER_TOKEN, user), 403),
            (GRAFANA, CIMultiDict([user]), 403),
            (GRAFANA, bearer("another-token", user), 401),
            (GRAFANA, bearer(GRAFANA_TOKEN, user, user), 403),
            (GRAFANA, bearer(GRAFANA_TOKEN, user, ("X-Scope-OrgID", "team-b")), 403),
        ):
            with pytest.raises(NotIdentified) as refused:
                await callers.identify(peer, headers)
            assert refused.value.status == status


async def test_many_users_are_each_known_by_their_own_name(callers: Callers) -> None:
    for number in [*range(3000), *range(10)]:
        found = await callers.identify(GRAFANA, bearer(GRAFANA_TOKEN, ("X-Grafana-User", f"user-{number}")))
        assert found.name == f"grafana/user-{number}"


async def test_new_configuration_takes_rights_away_at_once(callers: Callers) -> None:
    callers.replace(config(CONFIG.replace(sha256(RULER_TOKEN), sha256("new"))), OTHER.certificate)
    await refused(callers, STRANGER, bearer(RULER_TOKEN))
    await refused(callers, Peer("10.1.1.1", mimir()), CIMultiDict())
    assert isinstance(await callers.identify(Peer("10.1.1.1", mimir(OTHER)), CIMultiDict()), Caller)
