"""`muster network doctor` on both API servers, and with a real CoreDNS on nodes of a real control plane."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import socket
import struct
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from muster.api.finding import Finding
from muster.api.names import LABEL_RACK
from muster.api.node_health import NodeHealth, NodeHealthStatus, ObservedFinding
from muster.controlplane.children import Child
from muster.controlplane.goprograms import NotBuiltError, find_built
from muster.controlplane.programs import ControlPlane
from muster.embedded.kubelet.sweep import sweep
from muster.embedded.readiness import install_kinds
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.errors import AlreadyExists, NotFound
from muster.kube.objects.core import Namespace, ServiceAccount
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import to_dict
from muster.network.checks.cluster.doctor import examine_cluster
from muster.network.checks.node.dnsprobe import A, request
from muster.network.checks.report import Report
from tests.support.apiserver import Api
from tests.support.musterprogram import MUSTER, Muster
from tests.support.waiting import eventually

SYSTEM = "kube-system"
LABELS = {"k8s-app": "kube-dns"}
NAME = "kubernetes.default.svc.cluster.local"
EXTERNAL = "storage.example.com"
DNS_PORT, METRICS_PORT = 1053, 9153


@dataclass
class Site:
    """An API server with nodes and pods of DNS, which the test removes."""

    client: Client
    prefix: str
    nodes: list[str] = field(default_factory=list)
    pods: list[str] = field(default_factory=list)

    async def node(self, name: str, rack: str) -> None:
        await self.client.create(Node(metadata=ObjectMeta(name=f"{self.prefix}{name}", labels={LABEL_RACK: rack})))
        self.nodes.append(f"{self.prefix}{name}")

    async def servers(self, *nodes: str) -> None:
        """Replace the pods of DNS by ready ones on these nodes."""
        for name in self.pods:
            with contextlib.suppress(NotFound):
                await self.client.request(
                    "DELETE", f"/api/v1/namespaces/{SYSTEM}/pods/{name}", params={"gracePeriodSeconds": "0"}
                )
        self.pods = [f"{self.prefix}dns-{uuid.uuid4().hex[:6]}" for _ in nodes]
        for name, node in zip(self.pods, nodes, strict=True):
            spec = {
                "nodeName": f"{self.prefix}{node}",
                "containers": [{"name": "coredns", "image": "coredns"}],
                "automountServiceAccountToken": False,
            }
            metadata = {"name": name, "labels": LABELS}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            path = f"/api/v1/namespaces/{SYSTEM}/pods"
            await self.client.request("POST", path, body=json.dumps(pod).encode())
            ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
            await self.client.patch(Pod, name, ready, namespace=SYSTEM, subresource="status")

    async def condition(self, kind: type[Node | Pod], name: str, status: str) -> None:
        """Set the condition Ready of a node or of a pod of DNS."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        ready = {"type": "Ready", "status": status, "lastHeartbeatTime": now, "lastTransitionTime": now}
        if kind is Pod:
            del ready["lastHeartbeatTime"]
        namespace = SYSTEM if kind is Pod else None
        patch = {"status": {"conditions": [ready]}}
        await self.client.patch(kind, name, patch, namespace=namespace, subresource="status")

    @contextlib.asynccontextmanager
    async def service(self) -> AsyncIterator[str]:
        """A Service of DNS while the block runs."""
        path = f"/api/v1/namespaces/{SYSTEM}/services"
        name = f"{self.prefix}kube-dns"
        body = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": name, "labels": LABELS},
            "spec": {"selector": LABELS, "ports": [{"port": 53, "protocol": "UDP"}]},
        }
        await self.client.request("POST", path, body=json.dumps(body).encode())
        try:
            yield name
        finally:
            await self.client.request("DELETE", f"{path}/{name}")

    async def examine(self) -> Report:
        return await examine_cluster(self.client, 0, ())


@pytest.fixture
async def site(cluster_config: ClusterConfig) -> AsyncIterator[Site]:
    async with Client(cluster_config) as client:
        await install_kinds(client)
        with contextlib.suppress(AlreadyExists):
            await client.create(Namespace(metadata=ObjectMeta(name=SYSTEM)))
        with contextlib.suppress(AlreadyExists):
            await client.create(ServiceAccount(metadata=ObjectMeta(name="default", namespace=SYSTEM)))
        made = Site(client, f"dns-{uuid.uuid4().hex[:6]}-")
        try:
            yield made
        finally:
            await made.servers()
            for name in made.nodes:
                with contextlib.suppress(NotFound):
                    await client.delete(NodeHealth, name)
                await client.delete(Node, name)


def found(report: Report) -> dict[str, Any]:
    return {finding.id: finding for finding in report.findings if finding.id.startswith("dns-one")}


def one(report: Report, name: str) -> Finding:
    (finding,) = [each for each in report.findings if each.id == name]
    return finding


async def test_placement_of_dns_servers_kubernetes_57683(site: Site) -> None:
    for name, rack in (("a", "r1"), ("b", "r1"), ("c", "r2")):
        await site.node(name, rack)
    await site.servers("a", "a")
    report = await site.examine()
    assert set(found(report)) == {"dns-one-node"}
    assert f"node {site.prefix}a" in found(report)["dns-one-node"].title
    assert report.failed
    assert any(each.what == "metrics of cluster DNS" for each in report.unseen), "no kubelet serves these pods"
    await site.servers("a", "b")
    assert set(found(await site.examine())) == {"dns-one-rack"}
    await site.servers("a", "c")
    assert found(await site.examine()) == {}


async def test_no_ready_server_is_an_error(site: Site) -> None:
    """Pods that are not ready, pods on lost nodes, and a Service without pods are not servers."""
    for name in ("a", "b"):
        await site.node(name, "")
    await site.servers("a", "b")
    await site.condition(Pod, site.pods[0], "False")
    report = await site.examine()
    assert "1 ready server;" in one(report, "dns-too-few").title
    await site.condition(Node, site.nodes[1], "Unknown")
    report = await site.examine()
    assert "none of its 2 pods is ready on a ready node" in one(report, "dns-no-servers").title
    assert report.failed
    await site.servers()
    async with site.service() as name:
        finding = one(await site.examine(), "dns-no-servers")
    assert [who.name for who in finding.who] == [f"{SYSTEM}/{name}"]
    assert "it has no pods" in finding.title


async def test_cluster_without_labelled_dns_is_not_examined_and_its_nodes_are_counted(site: Site) -> None:
    await site.node("a", "")
    report = await site.examine()
    assert report.nodes >= 1
    (unseen,) = [each for each in report.unseen if each.what == "cluster DNS"]
    assert "no pod and no Service in kube-system has the label k8s-app=kube-dns" in unseen.why


async def test_findings_of_agents_are_shown_with_their_fix(site: Site) -> None:
    await site.node("a", "r1")
    now = datetime.now(UTC)
    overflow = ObservedFinding(
        check="neighbours", code="overflow", component="IPv4", count=7, first_time=now, last_time=now, message="7 lost"
    )
    name = site.nodes[0]
    await site.client.create(NodeHealth(metadata=ObjectMeta(name=name)))
    status = NodeHealthStatus(node_uid="u", boot_id="b", time=now, findings=(overflow,))
    await site.client.patch(NodeHealth, name, {"status": to_dict(status)}, subresource="status")
    report = await site.examine()
    (finding,) = [each for each in report.findings if each.id == "neighbours-overflow"]
    assert name in [who.name for who in finding.who]
    assert "the values that the finding names" in finding.fix.summary
    assert "7 lost" in finding.title
    assert report.checked_nodes >= 1


@dataclass
class Cluster:
    """A real control plane whose nodes run CoreDNS as processes."""

    plane: ControlPlane
    muster: Muster
    coredns: Path
    folder: Path

    def api(self) -> Api:
        return Api(self.plane.kubeconfig)

    def pods(self) -> list[Any]:
        """Return the ready pods of DNS that stay."""
        query = {"labelSelector": "k8s-app=kube-dns"}
        pods = self.api().get(f"/api/v1/namespaces/{SYSTEM}/pods", **query)["items"]
        return [pod for pod in pods if _is_ready(pod) and "deletionTimestamp" not in pod["metadata"]]

    def nodes(self) -> list[str]:
        return [pod["spec"]["nodeName"] for pod in self.pods()]

    def addresses(self) -> list[str]:
        return [pod["status"]["podIP"] for pod in self.pods()]

    def examine(self, *arguments: str) -> dict[str, Any]:
        urls = [f"--dns-metrics=http://{address}:{METRICS_PORT}/metrics" for address in self.addresses()]
        done = self.muster.run(
            "network", "doctor", "-o", "json", f"--kubeconfig={self.plane.kubeconfig}", *urls, *arguments,
            program=MUSTER,
        )  # fmt: skip
        assert done.returncode in (0, 1), done
        report: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == any(each["severity"] == "error" for each in report["findings"])
        return report

    def findings(self, *arguments: str) -> dict[str, Any]:
        return {each["id"]: each for each in self.examine(*arguments)["findings"]}

    def kubectl(self, command: str, *more: str) -> str:
        """Run a command line that the doctor printed."""
        program, *arguments = shlex.split(command)
        assert program == "kubectl"
        return self.plane.access.kubectl(*arguments, *more)


def _is_ready(pod: Any) -> bool:
    return any(each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ()))


@pytest.fixture
def cluster(control_plane_binaries: Path, tmp_path: Path) -> Iterator[Cluster]:
    """Three nodes in two racks. Only the first takes pods at first."""
    try:
        coredns = find_built("coredns", build=os.environ.get("MUSTER_REQUIRE_REAL") == "1") / "coredns"
    except NotBuiltError as error:
        pytest.skip(str(error))
    marker = f"test-{uuid.uuid4().hex[:12]}"
    kubelets: list[Child] = []
    with ControlPlane(control_plane_binaries, scheduler=True) as plane:
        try:
            kubelets += (_kubelet(plane, tmp_path, marker, number) for number in range(1, 4))
            made = Cluster(plane, Muster(tmp_path / "home"), coredns, tmp_path)
            eventually("three nodes", lambda: len(made.api().get("/api/v1/nodes")["items"]) == 3)
            for number in range(1, 4):
                plane.access.kubectl("label", "node", f"n{number}", f"{LABEL_RACK}=r{1 + (number > 2)}")
                if number > 1:
                    plane.access.kubectl("cordon", f"n{number}")
            yield made
        finally:
            for each in kubelets:
                each.stop(0)
            sweep(marker)


def _kubelet(plane: ControlPlane, folder: Path, marker: str, number: int) -> Child:
    command = [
        sys.executable, "-m", "muster.embedded.kubelet", f"--node=n{number}", f"--kubeconfig={plane.kubeconfig}",
        f"--state-dir={folder}/n{number}", f"--cluster-id={marker}", f"--address=127.{40 + number}.7.1",
        f"--pod-cidr=127.{40 + number}.7.0/24", "--sync-period-s=0.5", f"--client-ca-file={plane.ca_path}",
    ]  # fmt: skip
    return Child(command, folder / f"n{number}.log")


def _corefile(cluster: Cluster) -> str:
    context = json.loads(cluster.plane.access.kubectl("config", "view", "-o", "json"))["current-context"]
    return f""".:{DNS_PORT} {{
    bind {{$POD_IP}}
    errors
    ready {{$POD_IP}}:8181
    kubernetes cluster.local {{
        kubeconfig {cluster.plane.kubeconfig} {context}
    }}
    prometheus {{$POD_IP}}:{METRICS_PORT}
    cache 30
}}
"""


def _deploy(cluster: Cluster) -> None:
    (cluster.folder / "Corefile").write_text(_corefile(cluster))
    container = {
        "name": "coredns",
        "image": "coredns",
        "command": [str(cluster.coredns), "-conf", str(cluster.folder / "Corefile")],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
    }
    spec = {
        "replicas": 2,
        "selector": {"matchLabels": LABELS},
        "template": {
            "metadata": {"labels": LABELS},
            "spec": {
                "containers": [container],
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 1,
            },
        },
    }
    metadata = {"name": "coredns", "namespace": SYSTEM}
    cluster.plane.access.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})


def _ask(address: str, names: list[str]) -> list[tuple[int, int]]:
    """Return (response code, number of answers) for each name."""
    results = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.settimeout(10)
        opened.connect((address, DNS_PORT))
        for number, name in enumerate(names):
            opened.send(request(number, name, A))
            _, flags, _, answers = struct.unpack_from(">HHHH", opened.recv(4096))
            results.append((flags & 15, answers))
    return results


@pytest.mark.real
@pytest.mark.slow
def test_coredns_on_one_node_is_found_and_the_printed_patch_spreads_it_kubernetes_57683(cluster: Cluster) -> None:
    """The finding names the node, the patch is accepted as printed, and the finding goes away."""
    _deploy(cluster)
    eventually("two ready servers", lambda: len(cluster.pods()) == 2)
    assert set(cluster.nodes()) == {"n1"}
    for address in cluster.addresses():
        assert _ask(address, [NAME, f"absent.{NAME}"]) == [(0, 1), (3, 0)]
    for name in ("n2", "n3"):
        cluster.plane.access.kubectl("uncordon", name)

    findings = cluster.findings()
    assert findings["dns-one-node"]["severity"] == "error"
    assert "dns-ndots" not in findings, "a few answers say nothing"
    (command,) = findings["dns-one-node"]["fix"]["commands"]
    assert "requiredDuringSchedulingIgnoredDuringExecution" in command
    assert "patched" in cluster.kubectl(command, "--dry-run=server")
    assert "patched" in cluster.kubectl(command)
    # While the Deployment is rolled out, a server of the old kind may answer and be gone before its metrics are read.
    rolled_out = ("rollout", "status", "deployment/coredns", f"--namespace={SYSTEM}", "--timeout=60s")
    cluster.plane.access.kubectl(*rolled_out, timeout_s=90)
    eventually("servers on two nodes", lambda: len(set(cluster.nodes())) == 2)
    assert {"dns-one-node", "dns-one-rack"}.isdisjoint(cluster.findings())
    assert "dns-too-few" in cluster.findings("--at=7500")
    _check_amplification(cluster)


def _check_amplification(cluster: Cluster) -> None:
    """A program with the default ndots asks for an external name in each search domain first."""
    search = [f"{EXTERNAL}.{domain}" for domain in ("default.svc.cluster.local", "svc.cluster.local", "cluster.local")]
    for address in cluster.addresses():
        assert {code for code, _ in _ask(address, [*search, NAME] * 150)} == {0, 3}
    program = {"name": "train", "image": "train", "args": [f"--data=https://{EXTERNAL}/set"]}
    program["command"] = ["sleep", "600"]
    cluster.plane.access.apply(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "train", "namespace": "default"},
            "spec": {"containers": [program], "automountServiceAccountToken": False},
        }
    )
    running = {"fieldSelector": "status.phase=Running"}
    pods = "/api/v1/namespaces/default/pods"
    eventually("the program runs", lambda: bool(cluster.api().get(pods, **running)["items"]))
    finding = cluster.findings()["dns-ndots"]
    assert finding["who"][0]["name"] == "default/train"
    assert 60 < finding["evidence"][0]["value"] < 90
