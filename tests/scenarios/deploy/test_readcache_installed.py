"""Issue 15 A3, A5: the read cache with what the chart gives it, on a real control plane: rights, certificates, callers.

The tests go on from each other: the last ones look at all rights that were used.
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import http.client
import json
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from muster.controlplane.children import Child
from muster.controlplane.clusteraccess import KubectlError, write_kubeconfig
from muster.controlplane.ports import free_port
from muster.controlplane.programs import ControlPlane
from muster.kube.connection.config import load_config
from muster.kube.connection.pki import CertificateAuthority, KeyPair
from muster.kube.connection.servingcertificates import load_pair
from muster.readcache.kindnames import DEFAULT_KINDS
from tests.scenarios.deploy.conftest import SYSTEM, Helm
from tests.scenarios.deploy.rights import granted, unused
from tests.scenarios.deploy.test_chart import rendered
from tests.support.accessreviews import until_granted
from tests.support.auditlog import AuditLog
from tests.support.musterprogram import MUSTER
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ACCOUNT = f"system:serviceaccount:{SYSTEM}:muster-readcache"
NODE_ACCOUNT = f"{ACCOUNT}-node"
VALUES = ("--set=readCache.enabled=true,readCache.node.enabled=true",)
USERS = ("reader", "stranger", "actor")
Json = dict[str, Any]


@dataclasses.dataclass
class Cache:
    """A running cache."""

    url: str
    port: int
    metrics_port: int
    child: Child

    def ready(self) -> bool:
        assert self.child.exit_code is None, self.child.log_tail()
        connection = http.client.HTTPConnection("127.0.0.1", self.metrics_port, timeout=5)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def get(self, path: str, authorities: str, pair: KeyPair | None = None, **headers: str) -> tuple[int, Json]:
        """Return code and body; header names have underscores for dashes."""
        context = ssl.create_default_context(cadata=authorities)
        if pair is not None:
            load_pair(context, pair)
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=context)
        try:
            sent = {key.replace("_", "-"): value for key, value in headers.items()}
            connection.request("GET", path, headers={"Accept": "application/json", **sent})
            response = connection.getresponse()
            text = response.read()
            body = json.loads(text) if text.startswith(b"{") else {"text": text.decode()}
            return response.status, body
        finally:
            connection.close()


class Installed:
    """The control plane with the chart's objects for the cache, and its processes."""

    def __init__(self, plane: ControlPlane, audit: AuditLog, helm: Helm, folder: Path) -> None:
        self.plane, self.audit, self.folder = plane, audit, folder
        self.objects = rendered(helm, *VALUES)
        kinds = [each for (kind, _, _), each in self.objects.items() if kind == "CustomResourceDefinition"]
        shapes = ("Deployment", "DaemonSet", "PodDisruptionBudget", "Service")
        mine = [
            each
            for (kind, _, name), each in self.objects.items()
            if name.startswith("muster-readcache") and kind not in shapes
        ]
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}
        plane.access.apply(namespace, *kinds, *mine)
        self.caches: list[Cache] = []
        self._eventually_bound()
        self.since = audit.position()

    def _eventually_bound(self) -> None:
        """Until the API server knows the new rights, it refuses requests."""
        for what in ("create tokenreviews", "list pods", f"create secrets --namespace={SYSTEM}"):
            until_granted(self.plane.access, ACCOUNT, *what.split())
        until_granted(self.plane.access, NODE_ACCOUNT, "list", "pods")

    def get(self, *arguments: str) -> Any:
        return json.loads(self.plane.access.kubectl("get", *arguments, "--output=json"))

    def _container(self, kind: str, name: str) -> Json:
        (container,) = self.objects[kind, SYSTEM, name]["spec"]["template"]["spec"]["containers"]
        return dict(container)

    def start(self, name: str = "muster-readcache", kind: str = "Deployment", **replaced: str) -> Cache:
        """Run the container's command with its arguments, at addresses of this machine."""
        number = len(self.caches)
        port, metrics_port = free_port(), free_port()
        at = {"listen": f"127.0.0.1:{port}", "metrics-listen": f"127.0.0.1:{metrics_port}", **replaced}
        if "kubeconfig" not in at:
            at["kubeconfig"] = str(self.plane.access.service_account_kubeconfig(SYSTEM, name))
        kept = [part for part in self._container(kind, name)["args"] if part[2:].partition("=")[0] not in at]
        arguments = [*kept, *(f"--{option}={value}" for option, value in at.items())]
        if any(part.startswith("--host=") for part in kept):
            arguments.append("--host=127.0.0.1")
        child = Child([MUSTER, "readcache", *arguments], self.folder / f"cache-{number}.log", dict(os.environ))
        cache = Cache(f"https://127.0.0.1:{port}", port, metrics_port, child)
        self.caches.append(cache)
        eventually("the cache is ready", cache.ready)
        return cache

    def authorities(self, name: str = "muster-readcache-ca") -> str:
        """What the clients of the cache mount."""
        return str(self.get("configmap", name, f"--namespace={SYSTEM}")["data"]["ca.crt"])

    def stop(self) -> None:
        for cache in self.caches:
            cache.child.stop(grace_s=5)


@pytest.fixture(scope="module")
def authority() -> CertificateAuthority:
    return CertificateAuthority.create("people")


@pytest.fixture(scope="module")
def installed(
    control_plane_binaries: Path,
    offline_helm: Helm,
    authority: CertificateAuthority,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("readcache")
    audit = AuditLog(folder)
    with (folder / "users.csv").open("w") as file:
        csv.writer(file).writerows([[f"token-{name}", name, name] for name in USERS])
    bundle = folder / "clients.crt"
    bundle.write_bytes(authority.certificate)
    arguments = [*audit.apiserver_arguments, f"--token-auth-file={folder / 'users.csv'}", f"--client-ca-file={bundle}"]
    with ControlPlane(
        control_plane_binaries, controller_manager=False, extra_args={"kube-apiserver": arguments}
    ) as plane:
        bundle.write_bytes(bundle.read_bytes() + plane.ca_path.read_bytes())
        eventually("the administrator is accepted", lambda: _accepted(plane))
        made = Installed(plane, audit, offline_helm, folder)
        try:
            yield made
        finally:
            made.stop()


def _accepted(plane: ControlPlane) -> bool:
    try:
        plane.access.kubectl("get", "namespaces")
    except KubectlError:
        return False
    return True


@pytest.fixture(scope="module")
def cache(installed: Installed) -> Cache:
    rule = {
        "apiGroups": [""],
        "resources": ["pods", "nodes", "configmaps"],
        "verbs": ["get", "list", "watch", "create"],
    }
    impersonate = {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["reader"]}
    rbac = "rbac.authorization.k8s.io"
    for name, rules in (("reader", [rule]), ("actor", [impersonate])):
        installed.plane.access.apply(
            {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": name}, "rules": rules},
            {
                "apiVersion": f"{rbac}/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": name},
                "subjects": [{"kind": "User", "name": name, "apiGroup": rbac}],
                "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": name},
            },
        )
    until_granted(installed.plane.access, "reader", "list", "pods")
    until_granted(installed.plane.access, "actor", "impersonate", "users/reader")
    return installed.start()


def bearer(user: str) -> str:
    return f"Bearer token-{user}"


def test_caller_reads_what_the_api_server_lets_it_read(installed: Installed, cache: Cache) -> None:
    trusted = installed.authorities()
    code, body = cache.get("/api/v1/pods?resourceVersion=0", trusted, Authorization=bearer("reader"))
    assert (code, body["kind"]) == (200, "PodList")
    code, body = cache.get("/api/v1/namespaces/a/pods", trusted, Authorization=bearer("stranger"))
    message = 'pods is forbidden: User "stranger" cannot list resource "pods" in API group "" in the namespace "a"'
    assert (code, body["message"], body["reason"]) == (403, message, "Forbidden")
    code, body = cache.get("/api/v1/pods", trusted, Authorization="Bearer made-up-t0ken")
    assert (code, body["message"]) == (401, "Unauthorized")
    assert cache.get("/api/v1/pods", trusted)[0] == 403  # anonymous, at the API server
    assert cache.get("/api/v1/pods", trusted, Authorization="Basic cmVhZGVyOng=")[0] == 401
    acting = {"Authorization": bearer("actor"), "Impersonate_User": "reader"}
    assert cache.get("/api/v1/nodes?resourceVersion=0", trusted, **acting)[0] == 200
    assert cache.get("/api/v1/services?resourceVersion=0", trusted, **acting)[0] == 403
    assert cache.get("/api/v1/nodes", trusted, Authorization=bearer("actor"), Impersonate_User="stranger")[0] == 403


def test_each_configured_kind_is_served_and_others_are_forwarded(installed: Installed, cache: Cache) -> None:
    """The caller has a client certificate alone, which cannot be passed on."""
    trusted = installed.authorities()
    admin = load_config(installed.plane.kubeconfig)
    pair = KeyPair(admin.client_certificate, admin.client_key)
    paths = {"services": "/api/v1", "pods": "/api/v1", "nodes": "/api/v1", "namespaces": "/api/v1"}
    paths |= {"endpointslices": "/apis/discovery.k8s.io/v1"}
    paths |= dict.fromkeys(("trainingjobs", "nodehealths"), "/apis/muster.dev/v1alpha1")
    assert {name.partition(".")[0] for name in DEFAULT_KINDS} == paths.keys()
    for plural, prefix in paths.items():
        code, body = cache.get(f"{prefix}/{plural}", trusted, pair)
        assert (code, body["kind"].lower()) == (200, f"{plural.removesuffix('s')}list"), plural
    code, body = cache.get("/api/v1/configmaps", trusted, Authorization=bearer("reader"))
    assert (code, body["kind"]) == (200, "ConfigMapList")
    code, body = cache.get("/api/v1/configmaps", trusted, pair)
    assert code in (401, 403)
    assert "client certificate" in body["message"]


def test_client_certificates_of_other_authorities_are_refused(
    installed: Installed, cache: Cache, authority: CertificateAuthority
) -> None:
    trusted = installed.authorities()
    known = authority.issue_client("reader")
    assert cache.get("/api/v1/pods?resourceVersion=0", trusted, known)[0] == 200
    other = CertificateAuthority.create("other").issue_client("reader")
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
        cache.get("/api/v1/pods?resourceVersion=0", trusted, other)


def test_second_replica_mends_damaged_certificates(installed: Installed, cache: Cache) -> None:
    """It writes the Secret and the ConfigMap again, and the first replica continues."""
    before = installed.authorities()
    for what, patch in (
        (("secret", "muster-readcache-tls"), {"data": {"tls.crt": None}}),
        (("secret", "muster-readcache-node-tls"), {"data": {"tls.crt": None}}),
        (("configmap", "muster-readcache-ca"), {"data": {"ca.crt": "x"}}),
        (("configmap", "muster-readcache-node-ca"), {"data": {"ca.crt": "x"}}),
    ):
        body = json.dumps(patch)
        installed.plane.access.kubectl("patch", *what, f"--namespace={SYSTEM}", "--type=merge", f"--patch={body}")
    second = installed.start()
    assert installed.authorities() == before
    for each in (cache, second):
        assert each.get("/api/v1/pods", before, Authorization=bearer("reader"))[0] == 200


def test_cache_on_a_node_reads_through_the_central_one_and_needs_no_right_to_secrets(
    installed: Installed, cache: Cache, tmp_path: Path
) -> None:
    installed.plane.access.service_account_kubeconfig(SYSTEM, "muster-readcache-node")
    token = installed.plane.access.kubectl("create", "token", "muster-readcache-node", f"--namespace={SYSTEM}").strip()
    (tmp_path / "central.crt").write_text(installed.authorities())
    cluster = {"server": cache.url, "certificate-authority": str(tmp_path / "central.crt")}
    write_kubeconfig(tmp_path / "kubeconfig", cluster, "node", {"token": token})
    secret = installed.plane.access.kubectl(
        "get", "secret", "muster-readcache-node-tls", f"--namespace={SYSTEM}", "--output=json"
    )
    data = {key: base64.b64decode(value) for key, value in json.loads(secret)["data"].items()}
    KeyPair(data["tls.crt"], data["tls.key"]).write(tmp_path / "tls.crt", tmp_path / "tls.key")
    node = installed.start(
        "muster-readcache-node",
        "DaemonSet",
        **{
            "kubeconfig": str(tmp_path / "kubeconfig"),
            "tls-cert": str(tmp_path / "tls.crt"),
            "tls-key": str(tmp_path / "tls.key"),
        },
    )
    trusted = installed.authorities("muster-readcache-node-ca")
    for query in ("", "?resourceVersion=0"):
        assert node.get(f"/api/v1/pods{query}", trusted, Authorization=bearer("reader"))[0] == 200
        assert node.get(f"/api/v1/pods{query}", trusted, Authorization=bearer("stranger"))[0] == 403
    code, body = node.get("/api/v1/configmaps", trusted, Authorization=bearer("reader"))
    assert (code, body["kind"]) == (200, "ConfigMapList")
    with pytest.raises(ssl.SSLCertVerificationError):
        node.get("/api/v1/pods", installed.authorities(), Authorization=bearer("reader"))


def test_every_right_is_used_and_sufficient(installed: Installed, cache: Cache) -> None:
    entries = list(installed.audit.entries(installed.since))
    own = [entry for entry in entries if entry.user.username == ACCOUNT]
    rights = granted(installed, "muster-readcache")  # type: ignore[arg-type]
    assert rights.keys() == {"muster-readcache", "extension-apiserver-authentication-reader"}
    # Small kinds without protobuf are loaded and proven by watches; the comparison every few minutes lists them.
    later = {("list", "trainingjobs"), ("list", "nodehealths")}
    assert {(grant.verb, grant.resource) for grant in unused(rights["muster-readcache"], own)} <= later
    refused = {
        f"{entry.user.username} {entry.verb} {entry.request_uri}"
        for entry in entries
        if entry.user.username in (ACCOUNT, NODE_ACCOUNT) and entry.forbidden
    }
    assert refused == set()
    assert not any("impersonat" in entry.request_uri for entry in own)


def test_tokens_and_passwords_are_in_no_log_and_no_metric(installed: Installed, cache: Cache) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", cache.metrics_port, timeout=5)
    connection.request("GET", "/metrics")
    texts = [connection.getresponse().read().decode()]
    connection.close()
    texts += [file.read_text() for file in installed.folder.glob("cache-*.log")]
    assert "muster_readcache_objects" in texts[0]
    assert not [
        word for word in ("token-reader", "token-stranger", "cmVhZGVyOng", "made-up-t0ken") if word in "".join(texts)
    ]
