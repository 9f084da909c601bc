"""Issue 15 A3, A4: `muster readcache` in front of a real API server.

kubectl works through it with a token, what is not cached reaches the API server, and a restart costs one list.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from muster.controlplane.children import Child
from muster.controlplane.clusteraccess import inline, write_kubeconfig
from muster.controlplane.ports import free_port
from muster.controlplane.programs import ControlPlane
from muster.kube.connection.pki import CertificateAuthority
from tests.scenarios.readcache.kubeletstub import KubeletStub
from tests.support.waiting import TIMEOUT_S, until

OWN = ("Date", "Audit-Id", "X-Kubernetes-Pf-", "Content-Length", "Transfer-Encoding")
"""Headers that differ between two requests, or say how the body is framed."""
EVERYTHING = ({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},)


@dataclass
class Through:
    """A control plane with one pod, and a read cache in front of it."""

    plane: ControlPlane
    kubelet: KubeletStub
    port: int
    folder: Path
    token: str

    def start(self, *arguments: str, config: str = "token") -> subprocess.Popen[bytes]:
        command = [str(self.plane.access.kubectl_path), f"--kubeconfig={self.folder / config}", *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def kubectl(self, *arguments: str, stdin: str = "", config: str = "token") -> tuple[int, str]:
        started = self.start(*arguments, config=config)
        out, error = started.communicate(stdin.encode(), TIMEOUT_S)
        assert started.returncode is not None
        return started.returncode, (out if started.returncode == 0 else error).decode()


@pytest.fixture(scope="module")
def through(control_plane_binaries: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Through]:
    folder = tmp_path_factory.mktemp("cache")
    flags = {"kube-apiserver": ["--disable-admission-plugins=ServiceAccount,TaintNodesByCondition"]}
    plane = ControlPlane(control_plane_binaries, controller_manager=False, extra_args=flags)
    port = free_port()
    with plane, KubeletStub(folder) as kubelet:
        kubeconfig = plane.access.service_account_kubeconfig("default", "me", EVERYTHING)
        token = json.loads(kubeconfig.read_text())["users"][0]["user"]["token"]
        _add_pod(plane, kubelet.port)
        authority = CertificateAuthority.create()
        authority.issue_server("cache", ["127.0.0.1"]).write(folder / "tls.crt", folder / "tls.key")
        cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": inline(authority.certificate)}
        write_kubeconfig(folder / "token", cluster, "me", {"token": token})
        admin = json.loads(plane.access.kubectl("config", "view", "--raw", "--flatten", "-o", "json"))
        write_kubeconfig(folder / "certificate", cluster, "admin", admin["users"][0]["user"])
        tls = (f"--tls-cert={folder / 'tls.crt'}", f"--tls-key={folder / 'tls.key'}")
        cache = start_cache(plane, port, folder / "log", *tls)
        try:
            _until_served(cache, port)
            yield Through(plane, kubelet, port, folder, token)
        finally:
            cache.stop(grace_s=0)


def start_cache(plane: ControlPlane, port: int, log: Path, *more: str) -> Child:
    command: list[str | Path] = [sys.executable, "-m", "muster.cli.main", "readcache", "--kind=pods"]
    return Child([*command, f"--kubeconfig={plane.kubeconfig}", f"--listen=127.0.0.1:{port}", *more], log)


def _add_pod(plane: ControlPlane, kubelet_port: int) -> None:
    status = {
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet_port}},
        "declaredFeatures": ["ExtendWebSocketsToKubelet"],
    }
    node: dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}
    container = {"name": "c", "image": "x"}
    meta = {"name": "runs", "namespace": "default"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": "n", "containers": [container]}}
    plane.access.apply(node, pod)
    plane.access.kubectl("patch", "node", "n", "--subresource=status", "--patch", json.dumps({"status": status}))
    running = json.dumps({"status": {"phase": "Running"}})
    plane.access.kubectl("patch", "pod", "runs", "--subresource=status", "--patch", running)


def _until_served(cache: Child, port: int) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 5).close()
            return
        except OSError:
            assert cache.exit_code is None, cache.log_tail()
            assert time.monotonic() < deadline, cache.log_tail()
            time.sleep(0.05)


def test_kubectl_reads_writes_and_says_who_it_is(through: Through) -> None:
    code, out = through.kubectl("get", "pods", "-A", "--no-headers")
    assert (code, out.split()[:2]) == (0, ["default", "runs"])
    code, out = through.kubectl("get", "--raw", "/api/v1/pods?resourceVersion=0")
    assert json.loads(out)["items"][0]["metadata"]["name"] == "runs"
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}, "data": {"a": "b"}}
    assert through.kubectl("apply", "-f", "-", stdin=json.dumps(config))[0] == 0
    assert through.kubectl("get", "configmap", "made", "-o", "jsonpath={.data.a}") == (0, "b")
    code, out = through.kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
    assert out == "system:serviceaccount:default:me"


def test_log_is_followed_and_left(through: Through) -> None:
    log = through.start("logs", "-f", "runs")
    assert log.stdout is not None
    assert log.stdout.readline() == b"first\n"
    through.kubelet.go_on()
    assert log.communicate(timeout=TIMEOUT_S) == (b"second\n", b"")
    log = through.start("logs", "-f", "runs")
    assert log.stdout is not None
    assert log.stdout.readline() == b"first\n"
    log.terminate()
    log.communicate(timeout=TIMEOUT_S)
    assert through.kubelet.left.wait(TIMEOUT_S)


@pytest.mark.kubernetes_since("1.36")
def test_exec_over_websocket(through: Through) -> None:
    assert through.kubectl("exec", "-i", "runs", "--", "cat", stdin="words") == (0, "read words")


def test_port_forward_over_spdy(through: Through) -> None:
    context = ssl.create_default_context(cadata=_authority(through))
    with (
        socket.create_connection(("127.0.0.1", through.port), TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connected,
    ):
        lines = ["POST /api/v1/namespaces/default/pods/runs/portforward HTTP/1.1", "Host: c", "Content-Length: 0"]
        lines += [f"Authorization: Bearer {through.token}", "Connection: Upgrade", "Upgrade: SPDY/3.1"]
        lines += ["X-Stream-Protocol-Version: portforward.k8s.io", "", ""]
        connected.sendall("\r\n".join(lines).encode())
        received = connected.makefile("rb")
        head = list(iter(received.readline, b"\r\n"))
        assert head[0].startswith(b"HTTP/1.1 101 "), b"".join(head)
        assert b"upgrade: spdy/3.1\r\n" in [line.lower() for line in head]
        for _ in range(3):
            connected.sendall(b"a" * 100_000)
            assert received.read(100_000) == b"A" * 100_000


def test_certificate_alone_reads_the_cache_and_nothing_else(through: Through) -> None:
    code, out = through.kubectl("get", "--raw", "/api/v1/pods?resourceVersion=0", config="certificate")
    assert (code, json.loads(out)["kind"]) == (0, "PodList")
    code, error = through.kubectl("get", "--raw", "/api/v1/secrets", config="certificate")
    assert code == 1
    assert "cannot pass on a client certificate: send a bearer token" in error


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/api/v1/pods?resourceVersion=0", {}),
        ("/api/v1/pods?resourceVersion=0", {"Accept": "application/vnd.kubernetes.protobuf"}),
        ("/api/v1/namespaces/default/pods/none?resourceVersion=0", {}),
        ("/api/v1/pods?resourceVersion=x", {}),
        ("/api/v1/pods?watch=1&timeoutSeconds=1&resourceVersion=0", {"Accept-Encoding": "gzip"}),
        ("/api/v1/pods?resourceVersion=0", {"Authorization": "Bearer nonsense"}),
        ("/api/v1/secrets", {}),
    ],
)
def test_headers_are_those_of_the_api_server(through: Through, path: str, headers: dict[str, str]) -> None:
    found = []
    for url, authority in (
        (through.plane.url, through.plane.ca_path.read_text()),
        (f"https://127.0.0.1:{through.port}", _authority(through)),
    ):
        address = urlsplit(url)
        context = ssl.create_default_context(cadata=authority)
        connection = http.client.HTTPSConnection(address.netloc, timeout=TIMEOUT_S, context=context)
        try:
            connection.request("GET", path, headers={"Authorization": f"Bearer {through.token}", **headers})
            answer = connection.getresponse()
            answer.read()
            kept = {name: value for name, value in answer.headers.items() if not name.startswith(OWN)}
            found.append((answer.status, kept))
        finally:
            connection.close()
    assert found[1] == found[0]


async def test_restart_with_many_clients_costs_one_state(through: Through, tmp_path: Path) -> None:
    clients, port = 60, free_port()
    seen = [0] * clients

    async def watch(number: int) -> None:
        """Watch from the state on, and again whenever the watch ends, as an informer does."""
        path = "/api/v1/pods?watch=1&allowWatchBookmarks=1&resourceVersion=0&sendInitialEvents=1"
        head = f"GET {path}&resourceVersionMatch=NotOlderThan HTTP/1.1\r\nHost: c\r\nAuthorization: Bearer "
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionError:
                await asyncio.sleep(0.02)
                continue
            try:
                writer.write(f"{head}{through.token}\r\n\r\n".encode())
                await reader.readuntil(b"initial-events-end")
                seen[number] += 1
                await reader.read(-1)
            except (ConnectionError, asyncio.IncompleteReadError):
                continue
            finally:
                writer.close()

    watching = [asyncio.create_task(watch(number)) for number in range(clients)]
    cache = start_cache(through.plane, port, tmp_path / "log")
    try:
        await until("all clients have the state", lambda: min(seen) == 1)
        before = _states(through)
        os.kill(cache.pid, signal.SIGKILL)
        cache.stop(grace_s=0)
        cache = start_cache(through.plane, port, tmp_path / "log")
        await until("all clients have it again", lambda: min(seen) == 2)
        assert _states(through) - before == 1
    finally:
        for task in watching:
            task.cancel()
        await asyncio.gather(*watching, return_exceptions=True)
        cache.stop(grace_s=0)


def _states(through: Through) -> float:
    """How often the API server sent the one pod that there is at the start of a watch."""
    page = through.plane.access.kubectl("get", "--raw", "/metrics")
    name = 'apiserver_init_events_total{group="",resource="pods"}'
    return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))


def _authority(through: Through) -> str:
    clusters = json.loads((through.folder / "token").read_text())["clusters"]
    return b64decode(clusters[0]["cluster"]["certificate-authority-data"]).decode()
