"""Issue 15 A3: the cache decides about reads as the API server itself does."""

from __future__ import annotations

import asyncio
import base64
import csv
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import NameOID
from prometheus_client import CollectorRegistry

from muster.controlplane.clusteraccess import KubectlError, write_kubeconfig
from muster.controlplane.programs import ControlPlane
from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.connection.credentials import StaticToken
from muster.kube.connection.pki import CertificateAuthority, KeyPair
from muster.readcache.access.access import Access
from muster.readcache.access.authorities import AuthoritiesFollower
from muster.readcache.access.certificates import cluster_authorities
from muster.readcache.access.settings import AccessSettings
from muster.readcache.program import ReadCacheOptions, run_readcache
from tests.scenarios.readcache.accesscases import KINDS, Case, Plane, difference, outcome, ssl_context
from tests.support.accessreviews import until_granted
from tests.support.clientcertificates import CLIENT, HOUR, SERVER, UID, certificate, der, named
from tests.support.waiting import TIMEOUT_S, eventually, until

USERS = {
    "alice": ("alice", ""),
    "bob": ("bob", ""),
    "carol": ("carol", "readers"),
    "dave": ('dave & <"sons">', ""),
    "n1": ("system:node:n1", "system:nodes"),
    "actor": ("actor", ""),
    "constrained": ("constrained", ""),
    "root": ("root", "system:masters"),
    "cache": ("cache", ""),
}
"""Name and group by the word in the token."""
NEVER = AccessSettings(decision_max_age_s=0, rejection_max_age_s=0)


def token(user: str) -> str:
    return f"secret-of-{user}"


def role(name: str, namespace: str, *rules: dict[str, Any]) -> dict[str, Any]:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    kind = "Role" if namespace else "ClusterRole"
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": meta, "rules": list(rules)}


def rule(groups: str, resources: str, verbs: str, names: str = "") -> dict[str, Any]:
    named = {"resourceNames": names.split()} if names else {}
    return {"apiGroups": [groups], "resources": resources.split(), "verbs": verbs.split(), **named}


def binding(name: str, namespace: str, subject: str, kind: str = "User") -> dict[str, Any]:
    meta = {"name": name, **({"namespace": namespace} if namespace else {})}
    prefix = "" if namespace else "Cluster"
    group = "rbac.authorization.k8s.io"
    return {
        "apiVersion": f"{group}/v1",
        "kind": f"{prefix}RoleBinding",
        "metadata": meta,
        "subjects": [{"kind": kind, "name": subject, "apiGroup": group}],
        "roleRef": {"apiGroup": group, "kind": f"{prefix}Role", "name": name},
    }


RBAC = [
    *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("a", "b")),
    role("pods", "a", rule("", "pods", "get list watch"), rule("batch", "jobs", "list")),
    binding("pods", "a", "alice"),
    role("one", "a", rule("", "configmaps", "get list watch", "c1"), rule("", "namespaces", "get")),
    binding("one", "a", "bob"),
    role("nodes", "", rule("", "nodes", "list watch")),
    binding("nodes", "", "bob"),
    role("lists", "", rule("", "pods configmaps namespaces", "list")),
    binding("lists", "", "readers", "Group"),
    role(
        "acts",
        "",
        rule("", "users", "impersonate", "alice bob system:node:n1 system:anonymous"),
        rule("", "groups", "impersonate", "readers system:nodes"),
        rule("authentication.k8s.io", "uids", "impersonate", "u1"),
        rule("authentication.k8s.io", "userextras/scopes userextras/example.com/x", "impersonate", "view"),
    ),
    binding("acts", "", "actor"),
    role("acts", "a", rule("", "serviceaccounts", "impersonate", "robot")),
    binding("acts", "a", "actor"),
    role(
        "constrained",
        "",
        rule("authentication.k8s.io", "users", "impersonate:user-info", "alice"),
        rule("", "pods", "impersonate-on:user-info:list"),
    ),
    binding("constrained", "", "constrained"),
    role(
        "reviews",
        "",
        rule("authentication.k8s.io", "tokenreviews", "create"),
        rule("authorization.k8s.io", "subjectaccessreviews", "create"),
    ),
    binding("reviews", "", "cache"),
    binding("extension-apiserver-authentication-reader", "kube-system", "cache"),
]


LAST_RIGHTS = (
    "cache create subjectaccessreviews.authorization.k8s.io",
    "cache get configmaps/extension-apiserver-authentication --namespace=kube-system",
    "actor impersonate serviceaccounts/robot --namespace=a",
)
"""Rights by the last objects of each kind in `RBAC`."""


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    """An authority for client certificates besides that of the control plane."""
    return CertificateAuthority.create("clients")


@pytest.fixture(scope="module")
def bundle(authority: CertificateAuthority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with the authorities of client certificates."""
    path = tmp_path_factory.mktemp("authorities") / "clients.crt"
    path.write_bytes(authority.certificate)
    return path


@pytest.fixture(scope="module")
def plane(
    control_plane_binaries: Path, bundle: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ControlPlane]:
    """A control plane that authorizes nodes and RBAC, with static users."""
    users = tmp_path_factory.mktemp("access") / "users.csv"
    rows = [[token(word), name, f"uid-{word}", group] for word, (name, group) in USERS.items()]
    with users.open("w") as file:
        csv.writer(file).writerows(rows)
    arguments = ["--authorization-mode=Node", f"--token-auth-file={users}", f"--client-ca-file={bundle}"]
    with ControlPlane(
        control_plane_binaries, controller_manager=False, extra_args={"kube-apiserver": arguments}
    ) as running:
        # The API server reads the file again by itself, and accepts the administrator from then on.
        bundle.write_bytes(bundle.read_bytes() + running.ca_path.read_bytes())
        eventually("the administrator is accepted", lambda: _applied(running))
        for last in LAST_RIGHTS:  # until the API server knows the rights, it refuses requests
            until_granted(running.access, *last.split())
        yield running


@asynccontextmanager
async def running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _applied(plane: ControlPlane) -> bool:
    try:
        plane.access.apply(*RBAC)
    except KubectlError as error:
        if "Unauthorized" not in str(error) and "logged in" not in str(error):
            raise
        return False
    return True


@pytest.fixture
async def direct(plane: ControlPlane) -> AsyncIterator[Plane]:
    async with Plane(plane.url, ssl_context(plane.kubeconfig)) as plane:
        yield plane


@pytest.fixture
async def client(plane: ControlPlane) -> AsyncIterator[Client]:
    """The cache's client. It may create reviews, and read the authorities."""
    config = load_config(plane.kubeconfig)
    credentials = StaticToken(token("cache"))
    async with Client(replace(config, client_certificate=b"", client_key=b"", credentials=credentials)) as client:
        yield client


async def compared(direct: Plane, access: Access, cases: Sequence[Case]) -> Counter[str]:
    """Ask both; fail with the differences, else count the cache's outcomes."""
    places = asyncio.Semaphore(16)

    async def one(case: Case) -> tuple[str, str]:
        async with places:
            answer, found = await asyncio.gather(direct.answer(case), outcome(access, case))
            return difference(case, answer, found), found[0]

    results = await asyncio.gather(*map(one, cases))
    differences = [difference for difference, _ in results if difference]
    assert not differences, "\n".join(differences)
    return Counter(found for _, found in results)


def reads(tokens: Sequence[str], **fixed: Any) -> list[Case]:
    """Reads of all kinds by these callers: gets, lists and watches in namespaces, with selectors."""
    cases = []
    places = [(plural, space) for plural in ("pods", "configmaps", "secrets", "jobs") for space in ("", "a", "b")]
    places += [("nodes", ""), ("namespaces", "")]
    selectors: list[dict[str, str]] = [{}, {"fieldSelector": "metadata.name=c1"}, {"labelSelector": "app=x"}]
    for each, (plural, space) in itertools.product(tokens, places):
        for verb, query in itertools.product(("list", "watch"), selectors):
            cases.append(Case(each, verb, plural, space, query=query, **fixed))
        if space or plural in ("nodes", "namespaces"):
            cases += [Case(each, "get", plural, space, name, **fixed) for name in ("c1", "a")]
    return cases


async def test_15_decisions_equal_the_answers_of_the_api_server(direct: Plane, client: Client) -> None:
    cases = reads([token(word) for word in USERS])
    assert len(cases) > 500
    access = Access(client)
    outcomes = await compared(direct, access, cases)
    assert outcomes.keys() == {"admitted", "403"}, outcomes


SELECTORS = [
    {"fieldSelector": text}
    for text in (
        "spec.nodeName=n1",
        "spec.nodeName==n1",
        "spec.nodeName!=n1",
        "spec.nodeName=n2",
        "spec.nodeName=",
        "spec.nodeName=n1,status.phase=Running",
        "status.phase=Running,spec.nodeName=n1",
        "metadata.name==c1",
        "metadata.name!=c1",
        "metadata.name=c1,metadata.name=c2",
        "metadata.name=c2,metadata.name=c1",
        "metadata.name=c1,metadata.namespace=b",
        "metadata.name=c2",
        "metadata.name",
        "metadata.name=",
        "metadata.name=..",
        "metadata.name=c1/x",
        "metadata.name=c1%2f",
        "metadata.name=c1=x",
        "metadata.name=c1,",
        ",metadata.name=c1",
        " metadata.name=c1",
        "metadata.name=c1 ",
        r"metadata.name=c1\\,",
        r"metadata.name=\\c1",
        "metadata.namespace=a",
        "bogus=x,metadata.name=c1",
        "bogus",
        ",",
    )
]
SELECTORS += [
    {"fieldSelector": "metadata.name=c1", **other}
    for other in (
        {"labelSelector": "app=x"},
        {"labelSelector": "app in ("},
        {"labelSelector": "app,,x"},
        {"labelSelector": "a b"},
        {"labelSelector": ""},
        {"limit": "x"},
        {"limit": "1"},
        {"limit": ""},
        {"limit": "-1"},
        {"timeoutSeconds": "x"},
        {"resourceVersionMatch": "x"},
        {"sendInitialEvents": "x"},
    )
]
SELECTORS += [
    {"labelSelector": text} for text in ("app in (x,y)", "!app", "app notin (x),app", "app>1", "app=x=y", "é=x", ",")
]


async def test_15_selectors_are_authorized_as_the_api_server_does(direct: Plane, client: Client) -> None:
    """A kubelet may list the pods of its node; a rule with resourceNames allows lists of this name."""
    places = (("pods", ""), ("pods", "a"), ("configmaps", "a"), ("nodes", ""), ("namespaces", ""))
    cases = [
        Case(token(user), verb, plural, space, query=query)
        for user, (plural, space), verb, query in itertools.product(
            ("n1", "bob", "carol"), places, ("list", "watch"), SELECTORS
        )
        if not (verb == "watch" and "timeoutSeconds" in query)
    ]
    access = Access(client)
    outcomes = await compared(direct, access, cases)
    assert outcomes["admitted"] > 200
    assert outcomes["403"] > 200
    own = Case(token("n1"), "list", "pods", query={"fieldSelector": "spec.nodeName=n1"})
    other = replace(own, query={"fieldSelector": "spec.nodeName=n2"})
    assert [(await outcome(access, case))[0] for case in (own, other)] == ["admitted", "403"]
    named = Case(token("bob"), "watch", "configmaps", "a", query={"fieldSelector": "metadata.name=c1"})
    assert (await outcome(access, named))[0] == "admitted"


def acting(user: str, *pairs: str) -> tuple[tuple[str, str], ...]:
    headers = [pair.partition("=")[::2] for pair in pairs]
    return (
        *((("Impersonate-User", user),) if user else ()),
        *((f"Impersonate-{key}", value) for key, value in headers),
    )


IMPERSONATIONS = [
    acting("alice"),
    acting("alice", "Group=readers"),
    acting("dave"),
    acting("dave", "Group=readers"),
    acting("bob", "Group=system:masters"),
    acting("alice", "Uid=u1"),
    acting("alice", "Uid=u2"),
    acting("alice", "Extra-Scopes=view"),
    acting("alice", "Extra-scopes=edit"),
    acting("alice", "Extra-Scopes=view", "Extra-Scopes=view"),
    acting("alice", "Extra-example.com%2fX=view"),
    acting("alice", "Extra-example.com%2fY=view"),
    acting("alice", "Extra-bad%zz=view"),
    acting("alice", "Group="),
    acting("system:node:n1"),
    acting("system:node:n1", "Group=system:nodes"),
    acting("system:serviceaccount:a:robot"),
    acting("system:serviceaccount:a:robot", "Group=readers"),
    acting("system:serviceaccount:b:robot"),
    acting("system:serviceaccount:A:robot"),
    acting("system:anonymous"),
    acting("", "Group=readers"),
    acting("", "Uid=u1"),
    acting("", "Extra-Scopes=view"),
    acting("", "Unknown=x"),
]


async def test_15_impersonation_needs_the_rights_that_the_api_server_asks_for(direct: Plane, client: Client) -> None:
    places = [("list", "pods", "a"), ("list", "pods", ""), ("watch", "nodes", ""), ("list", "configmaps", "b")]
    places.append(("list", "secrets", "a"))
    cases = [
        Case(token(user), *place, headers=headers)
        for user, place, headers in itertools.product(("actor", "constrained", "alice", "root"), places, IMPERSONATIONS)
    ]
    cases += [
        replace(case, query={"fieldSelector": "spec.nodeName=n1"})
        for case in cases
        if case.plural == "pods" and ("Impersonate-User", "system:node:n1") in case.headers
    ]
    access = Access(client)
    outcomes = await compared(direct, access, cases)
    assert outcomes["admitted"] > 40
    assert outcomes["forward"] > 100

    async def of(user: str, headers: tuple[tuple[str, str], ...], plural: str = "pods", space: str = "a") -> str:
        return (await outcome(access, Case(token(user), "list", plural, space, headers=headers)))[0]

    assert await of("actor", acting("alice")) == "admitted"
    assert await of("actor", acting("alice", "Group=readers", "Uid=u1", "Extra-Scopes=view")) == "admitted"
    assert await of("actor", acting("bob", "Group=readers"), "configmaps", "b") == "admitted"
    assert await of("alice", acting("alice")) == "forward"  # the API server refuses it
    assert await of("actor", acting("alice", "Group=system:masters")) == "forward"
    assert await of("constrained", acting("alice")) == "forward"  # the API server allows it, in a way of its own
    assert (await direct.answer(Case(token("constrained"), "list", "pods", "a", headers=acting("alice"))))[0] == 200


def certificates(authority: CertificateAuthority, other: CertificateAuthority) -> dict[str, KeyPair]:
    below = CertificateAuthority(certificate(authority, named("below"), signs=True, usages=None))
    years = 50 * 365 * 24 * HOUR
    return {
        "alice": certificate(authority, named("alice")),
        "group": certificate(authority, named("someone", "others", "readers")),
        "node": certificate(authority, named("system:node:n1", "system:nodes")),
        "root": certificate(authority, named("anyone", "system:masters")),
        "without usages": certificate(authority, named("alice"), usages=None),
        "two names": certificate(authority, [*named("alice"), *named("bob")]),
        "two names, other order": certificate(authority, [*named("bob"), *named("alice")]),
        "UID": certificate(authority, [*named("alice"), (UID, "u1")]),
        "two UIDs": certificate(authority, [*named("alice"), (UID, "u1"), (UID, "u2")]),
        "no name": certificate(authority, [(NameOID.ORGANIZATION_NAME, "system:masters")]),
        "old": certificate(authority, named("alice"), begins=-2 * HOUR, ends=-HOUR),
        "early": certificate(authority, named("alice"), begins=HOUR, ends=2 * HOUR),
        "long": certificate(authority, named("alice"), ends=years),
        "server": certificate(authority, named("alice"), usages=[SERVER]),
        "both": certificate(authority, named("alice"), usages=[SERVER, CLIENT]),
        "critical": certificate(authority, named("alice"), critical=True),
        "other": certificate(other, named("root", "system:masters")),
        "not an authority": certificate(CertificateAuthority(certificate(authority, named("x"))), named("alice")),
        "intermediate": certificate(below, named("alice")),
    }


async def test_15_client_certificates_identify_as_at_the_api_server(
    plane: ControlPlane, direct: Plane, client: Client, authority: CertificateAuthority
) -> None:
    """Also with a token besides: a valid certificate counts first, an invalid one not at all."""
    authorities = cluster_authorities()
    follower = AuthoritiesFollower(client, authorities, lambda: None)
    async with running(follower.run()):
        await follower.wait_synced(TIMEOUT_S)
    access = Access(client, authorities=authorities)
    found = {}
    for name, pair in certificates(authority, CertificateAuthority.create("other")).items():
        async with Plane(plane.url, ssl_context(plane.kubeconfig, pair)) as certified:
            for user in ("", "bob", "unknown"):
                cases = [
                    Case(token(user) if user else "", verb, plural, space, query=query)
                    for verb, plural, space, query in (
                        ("list", "pods", "a", {}),
                        ("list", "pods", "", {"fieldSelector": "spec.nodeName=n1"}),
                        ("watch", "nodes", "", {}),
                        ("list", "secrets", "b", {}),
                    )
                ]
                for case in cases:
                    cached = await outcome(access, case, der(pair))
                    assert not difference(case, await certified.answer(case), cached), (name, user)
                    found[name, user, f"{case.plural}/{case.namespace}"] = cached[0]
    assert found["alice", "", "pods/a"] == found["alice", "unknown", "pods/a"] == "admitted"
    assert found["alice", "bob", "nodes/"] == "403"
    assert found["old", "bob", "nodes/"] == "admitted"
    assert [found[name, "", "secrets/b"] for name in ("root", "old", "other", "server", "no name")] == [
        "admitted", "401", "401", "401", "forward",
    ]  # fmt: skip


async def test_15_credentials_that_the_cache_does_not_take(direct: Plane, client: Client) -> None:
    access = Access(client)
    secret = token("root")
    encoded = base64.urlsafe_b64encode(secret.encode()).decode().rstrip("=")

    async def of(*headers: tuple[str, str], **query: str) -> str:
        return (await outcome(access, Case("", "list", "secrets", "a", query=query, headers=headers)))[0]

    assert await of(("Authorization", f"Bearer {secret}")) == "admitted"
    assert await of(("authorization", f"  bearer {secret} ")) == "admitted"
    assert await of(("Authorization", f"Bearer {secret} rest")) == "admitted"
    assert await of(("Authorization", "Basic cm9vdDpyb290")) == "401"
    assert await of(("Authorization", secret)) == "401"
    assert await of(("Sec-WebSocket-Protocol", f"base64url.bearer.authorization.k8s.io.{encoded}, x")) == "401"
    # Anonymous, so the API server answers:
    assert await of(("Authorization", f"Bearer  {secret}")) == "forward"
    assert await of(("Authorization", "Bearer")) == "forward"
    assert await of(access_token=secret, token=secret) == "forward"
    assert await of(("X-Remote-User", "root"), ("X-Remote-Group", "system:masters")) == "forward"
    refused = ("Authorization", f"Bearer {token('dave')}")
    assert await of(refused, ("X-Remote-User", "root"), ("X-Remote-Group", "system:masters")) == "403"
    for header in (f"Bearer {secret}", f"  bearer {secret} ", f"Bearer {secret} rest"):
        assert (await direct.answer(Case("", "list", "secrets", "a", headers=(("Authorization", header),))))[0] == 200


async def test_15_decisions_follow_changes_of_rbac(plane: ControlPlane, direct: Plane, client: Client) -> None:
    """Within the bound where decisions are kept, and at once where each request asks."""
    now = [0.0]
    fresh, kept = Access(client, NEVER), Access(client, clock=lambda: now[0])
    rng = random.Random(15)
    bound: set[tuple[str, str]] = set()
    group = "rbac.authorization.k8s.io"
    plane.access.apply(*(role("change", space, rule("", "pods secrets", "list watch")) for space in ("a", "b")))
    cases = reads([token("dave"), token("bob")])[::3]
    admin = Client(load_config(plane.kubeconfig))
    async with admin:
        for _ in range(3):
            now[0] += 10.0
            before = {case.url + case.token: (await outcome(kept, case))[0] for case in cases}
            user, space = rng.choice(["dave", "bob"]), rng.choice("ab")
            change = binding(f"change-{user}", space, USERS[user][0])
            change["roleRef"]["name"] = "change"
            path = f"/apis/{group}/v1/namespaces/{space}/rolebindings"
            probe = Case(token(user), "list", "secrets", space)
            if (user, space) in bound:
                await admin.request("DELETE", f"{path}/change-{user}")
                bound.remove((user, space))
            else:
                await admin.request("POST", path, body=json.dumps(change).encode())
                bound.add((user, space))
            code = 200 if (user, space) in bound else 403
            await until("the change holds", lambda p=probe, c=code: _has(direct, p, c))
            await compared(direct, fresh, cases)
            now[0] += 9.9
            assert {case.url + case.token: (await outcome(kept, case))[0] for case in cases} == before
            now[0] += 0.1
            await compared(direct, kept, cases)


async def _has(direct: Plane, case: Case, code: int) -> bool:
    return (await direct.answer(case))[0] == code


async def test_15_token_that_is_no_longer_valid_is_refused(plane: ControlPlane, direct: Plane, client: Client) -> None:
    """A token for another audience too; the cache accepts what the API server accepts, or the audiences it is given."""
    access = plane.access
    access.kubectl("create", "serviceaccount", "robot", "--namespace=a")
    binding_ = binding("pods", "a", "robot")
    binding_["metadata"]["name"] = "robot"
    binding_["subjects"] = [{"kind": "ServiceAccount", "name": "robot", "namespace": "a"}]
    access.apply(binding_)
    valid, foreign, unseen = (
        access.kubectl("create", "token", "robot", "--namespace=a", *extra).strip()
        for extra in ((), ("--audience=cache",), ("--duration=1h",))
    )
    own, strict, both = (
        Access(client, replace(NEVER, audiences=audiences))
        for audiences in ((), ("cache",), ("cache", "https://kubernetes.default.svc"))
    )
    cases = [Case(text, "list", "pods", "a") for text in (valid, foreign, valid + "x", "x.y.z")]
    await until("the binding holds", lambda: _has(direct, cases[0], 200))
    await compared(direct, own, cases)
    assert [(await outcome(own, case))[0] for case in cases] == ["admitted", "401", "401", "401"]
    assert [(await outcome(strict, case))[0] for case in cases] == ["401", "admitted", "401", "401"]
    assert [(await outcome(both, case))[0] for case in cases] == ["admitted", "admitted", "401", "401"]
    access.kubectl("delete", "serviceaccount", "robot", "--namespace=a")
    # The API server keeps its own answer about a token for 10 s, so this is one that it has never seen.
    cases[0] = replace(cases[0], token=unseen)
    await until("the token is refused", lambda: _refused(own, cases[0]))
    await compared(direct, own, cases)


async def _refused(access: Access, case: Case) -> bool:
    return (await outcome(access, case))[0] == "401"


@pytest.fixture
async def through(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Plane]:
    """Requests through a whole read cache in front of the control plane."""
    kubeconfig = tmp_path / "kubeconfig"
    cluster = {"server": plane.url, "certificate-authority": str(plane.ca_path)}
    write_kubeconfig(kubeconfig, cluster, "cache", {"token": token("cache")})
    kinds = ("pods", "nodes", "namespaces", "configmaps", "secrets", "jobs.batch")
    rules = [rule("", "pods nodes namespaces configmaps secrets", "list watch"), rule("batch", "jobs", "list watch")]
    plane.access.apply(role("reads", "", *rules), binding("reads", "", "cache"))
    stop, address = asyncio.Event(), asyncio.get_running_loop().create_future()

    def serving(host: str, port: int, _: object) -> None:
        address.set_result(f"http://{host}:{port}")

    options = ReadCacheOptions(kubeconfig=kubeconfig, kinds=kinds)
    work = asyncio.create_task(run_readcache(options, stop, on_ready=serving, registry=CollectorRegistry()))
    try:
        await asyncio.wait([work, address], return_when=asyncio.FIRST_COMPLETED)
        async with Plane(await address, None) as cache:
            yield cache
    finally:
        stop.set()
        await work


async def test_15_answers_of_the_whole_cache_equal_those_of_the_api_server(direct: Plane, through: Plane) -> None:
    """Also what the cache forwards: constrained impersonation, anonymous callers, and selectors that are not valid."""
    cases = reads([*map(token, USERS), "unknown", ""])[::4]
    cases += [
        Case(token(user), "list", "configmaps", "a", query=query) for user in ("n1", "bob") for query in SELECTORS
    ]
    cases += [
        Case(token(user), *place, headers=headers)
        for user in ("actor", "constrained")
        for place in (("list", "pods", "a"), ("watch", "nodes", ""))
        for headers in IMPERSONATIONS
    ]
    for plural in KINDS:
        listed = Case(token("root"), "list", plural)
        await until(f"the cache has {plural}", lambda listed=listed: _has(through, listed, 200))
    places = asyncio.Semaphore(16)

    async def one(case: Case) -> str:
        async with places:
            expected, found = await asyncio.gather(direct.answer(case), through.answer(case))
        return "" if expected == found else f"{case}: the API server {expected}, the cache {found}"

    differences = [found for found in await asyncio.gather(*map(one, cases)) if found]
    assert not differences, "\n".join(differences)
