"""The server as a process: crashes, restarts, what it refuses, what it passes on to kubelets."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import stat
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from muster.kube.connection.pki import CertificateAuthority, KeyPair
from tests.support.apiserver import Api, EmbeddedServer
from tests.support.waiting import TIMEOUT_S, eventually

CM = "/api/v1/namespaces/default/configmaps"


@pytest.mark.parametrize("round_", range(3))
def test_answered_writes_survive_kill_9(tmp_path: Path, round_: int) -> None:
    server = EmbeddedServer(tmp_path)
    api = server.start()
    answered: dict[str, str] = {}
    killed = threading.Event()

    def write(worker: int) -> None:
        for index in range(10_000):
            name = f"w{worker}-{index}"
            try:
                code, made, _ = api.send("POST", CM, {"metadata": {"name": name}})
            except (OSError, ssl.SSLError, http.client.HTTPException):  # killed in the middle of an answer, too
                return
            assert code == 201, made
            answered[name] = made["metadata"]["resourceVersion"]

    writers = [threading.Thread(target=write, args=(worker,)) for worker in range(3)]
    for writer in writers:
        writer.start()
    eventually("writes are answered", lambda: len(answered) > 20 * (round_ + 1))
    server.kill()
    killed.set()
    for writer in writers:
        writer.join(30)
    restarted = server.start()
    try:
        found = restarted.get(CM)
        stored = {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in found["items"]}
        assert answered.items() <= stored.items()
        newest = max(int(version) for version in answered.values())
        made = restarted.create(CM, {"metadata": {"name": "after"}})
        assert int(made["metadata"]["resourceVersion"]) > newest
        # An informer that saw the last answer before the crash continues from there.
        with restarted.watch(CM, resourceVersion=newest) as events:
            for event in events:
                assert event["type"] == "ADDED"
                if event["object"]["metadata"]["name"] == "after":
                    break
    finally:
        assert server.stop() == 0


def test_a_second_server_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path)
    server.start()
    try:
        second = subprocess.run(server.command(), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert second.returncode == 5
        assert "in use by another server" in second.stderr
    finally:
        server.stop()


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        command = EmbeddedServer(tmp_path, "--port", str(taken.getsockname()[1])).command()
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 5
    assert "is in use; choose another --port" in done.stderr


def test_a_restarted_server_keeps_its_address_and_credentials(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, "--port", "0")  # it chooses, and remembers
    api = server.start()
    address = server.ready["server"]
    server.stop()
    server.start()
    try:
        assert server.ready["server"] == address
        assert api.get("/api/v1/namespaces/default")["metadata"]["name"] == "default"
    finally:
        server.stop()


def test_secrets_are_private(embedded: Api) -> None:
    folder = embedded.kubeconfig.parent
    for name in ("admin-token", "kubelet-token", "kubeconfig", "service-account.key", "ca.key", "apiserver.key"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600


def test_without_a_token_nothing_is_served(embedded: Api) -> None:
    code, status, _ = embedded.send("GET", "/api/v1/namespaces", headers={"Authorization": "Bearer wrong"})
    assert (code, status["reason"]) == (401, "Unauthorized")
    assert embedded.send("GET", "/healthz", headers={"Authorization": ""})[1] == "ok"


def test_a_service_account_token_gets_in(embedded: Api) -> None:
    made = embedded.create("/api/v1/namespaces/default/serviceaccounts/default/token", {"spec": {}})
    bearer = {"Authorization": f"Bearer {made['status']['token']}"}
    code, answer, _ = embedded.send("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {}, headers=bearer)
    assert (code, answer["status"]["userInfo"]["username"]) == (201, "system:serviceaccount:default:default")


def test_a_body_that_is_too_large_is_refused(embedded: Api) -> None:
    code, status, _ = embedded.send("POST", CM, b'{"data": {"x": "' + b"y" * (4 << 20) + b'"}}')
    assert (code, status["reason"]) == (413, "RequestEntityTooLarge")


def test_requests_are_recorded_and_counted(tmp_path: Path) -> None:
    record = tmp_path / "asked.jsonl"
    server = EmbeddedServer(tmp_path / "state", "--record", str(record))
    api = server.start()
    try:
        api.send("GET", CM + "/absent", headers={"User-Agent": "tester/1"})
        metrics = api.send("GET", "/metrics")[1]
        assert 'apiserver_request_total{verb="GET",resource="configmaps",code="404"} 1' in metrics
    finally:
        server.stop()
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert {"method": "GET", "path": CM + "/absent", "userAgent": "tester/1", "status": 404}.items() <= lines[0].items()
    token = (tmp_path / "state" / "admin-token").read_text().strip()
    assert token not in record.read_text()


class Kubelet(BaseHTTPRequestHandler):
    """Answers logs as a kubelet does."""

    token = ""

    def do_GET(self) -> None:
        allowed = self.headers["Authorization"] == f"Bearer {self.token}"
        body = f"log of {self.path}\n".encode() if allowed else b"Unauthorized\n"
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_logs_come_from_the_kubelet_with_the_shared_token(embedded: Api, tmp_path: Path) -> None:
    folder = embedded.kubeconfig.parent
    authority = CertificateAuthority(KeyPair((folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes()))
    authority.issue_server("kubelet", ["127.0.0.1"]).write(tmp_path / "crt", tmp_path / "key")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    Kubelet.token = (folder / "kubelet-token").read_text().strip()
    with ThreadingHTTPServer(("127.0.0.1", 0), Kubelet) as kubelet:
        kubelet.socket = context.wrap_socket(kubelet.socket, server_side=True)
        thread = threading.Thread(target=kubelet.serve_forever)
        thread.start()
        try:
            status = {
                "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": kubelet.server_port}},
            }
            embedded.create("/api/v1/nodes", {"metadata": {"name": "log-node"}, "status": status})
            pod = {"metadata": {"name": "talks"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
            embedded.create("/api/v1/namespaces/default/pods", pod)
            path = "/api/v1/namespaces/default/pods/talks"
            code, failure, _ = embedded.send("GET", f"{path}/log")
            assert (code, failure["message"]) == (400, "pod talks does not have a host assigned")
            embedded.create(f"{path}/binding", {"target": {"kind": "Node", "name": "log-node"}})
            code, text, _ = embedded.send("GET", f"{path}/log?tailLines=3&container=c")
            assert (code, text) == (200, "log of /containerLogs/default/talks/c?tailLines=3\n")
            code, failure, _ = embedded.send("GET", f"{path}/log?container=other")
            assert (code, failure["message"]) == (400, "container other is not valid for pod talks")
        finally:
            kubelet.shutdown()
            thread.join()
            embedded.send("DELETE", "/api/v1/namespaces/default/pods/talks", {"gracePeriodSeconds": 0})
            embedded.send("DELETE", "/api/v1/nodes/log-node")
