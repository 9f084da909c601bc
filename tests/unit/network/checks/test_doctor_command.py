"""`muster network doctor` as a command: it never says that a network is fine that it has not seen."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from muster.cli.errors import ExitCode
from muster.cli.main import run
from muster.network.checks.node.doctor import examine_machine
from muster.network.checks.node.evidence import Settings
from muster.network.plan.needs import neighbour_entries, thresholds
from tests.support.networkproc import NetworkProc

HEALTHS = "/apis/muster.dev/v1alpha1/nodehealths"
NODES = {"items": [{"metadata": {"name": "n1"}}], "metadata": {"remainingItemCount": 3}}


class Server:
    """An API server. It refuses each path that `answers` lacks."""

    def __init__(self, folder: Path) -> None:
        self.answers: dict[str, tuple[int, Any]] = {"/version": (200, {"gitVersion": "v1.36.0"})}
        served = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                refusal = {"kind": "Status", "reason": "Forbidden", "message": "you may not"}
                status, body = served.answers.get(self.path.partition("?")[0], (403, refusal))
                data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.kubeconfig = folder / "kubeconfig"
        config = {
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {}}],
        }
        self.kubeconfig.write_text(json.dumps(config))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def doctor(self, *arguments: str) -> int:
        return run(["network", "doctor", f"--kubeconfig={self.kubeconfig}", *arguments])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.close()


def test_refused_connection_exits_as_without_a_cluster(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.close()
    assert server.doctor() == ExitCode.NO_CLUSTER
    printed = capsys.readouterr()
    assert "the cluster cannot be reached" in printed.err
    assert printed.out == ""


def test_examination_that_saw_nothing_fails(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers[HEALTHS] = (404, "404 page not found")
    assert server.doctor() == ExitCode.FAILED
    out = " ".join(capsys.readouterr().out.split())
    assert "UNKNOWN Nothing could be examined." in out
    assert "OK " not in out
    assert "the cluster has no NodeHealth objects: install Muster's chart" in out
    assert "list nodehealths" not in out, "a right does not help"
    assert "it needs the right: list pods in namespace kube-system" in out


def test_failure_of_the_server_is_not_a_missing_right(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    server.answers[HEALTHS] = (500, {"kind": "Status", "message": "etcd is full"})
    assert server.doctor("-o", "json") == ExitCode.FAILED
    report = json.loads(capsys.readouterr().out)
    assert report["examined"] == []
    (unseen,) = [each for each in report["unseen"] if each["what"].startswith("nodes (")]
    assert ("etcd is full" in unseen["why"], unseen["right"]) == (True, "")


def test_nodes_are_counted_and_the_plan_is_named_as_not_examined_without_agents(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.answers["/api/v1/nodes"] = (200, NODES)
    server.answers[HEALTHS] = (200, {"items": [], "metadata": {"resourceVersion": "1"}})
    assert server.doctor("--at=7500", "-o", "json") == ExitCode.FAILED
    report = json.loads(capsys.readouterr().out)
    assert (report["nodes"], report["plannedNodes"], report["checkedNodes"]) == (4, 7500, 0)
    whys = {each["what"]: each["why"] for each in report["unseen"]}
    assert "no agent reports" in whys["neighbour tables at 7500 nodes"]
    assert any("neighbour tables" in what and "no node has a recent NodeHealth" in why for what, why in whys.items())
    server.doctor()
    assert "0 of 4 nodes report" in capsys.readouterr().out


@pytest.mark.parametrize("folder", ["missing", "empty"])
def test_folder_that_is_not_a_proc_is_refused(folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    code = run(["network", "doctor", "--here", f"--proc={tmp_path / folder}", "--window=0.1"])
    assert code == ExitCode.BAD_INPUT
    assert "is not the /proc of a machine" in capsys.readouterr().err


def test_namespace_of_a_pod_is_named_as_not_examined(tmp_path: Path) -> None:
    """The kernel shows the thresholds in the first namespace only."""
    node = NetworkProc(tmp_path / "proc")
    assert _not_host(node) == []
    for number in (1, 2, 3):
        (node.proc / f"sys/net/ipv4/neigh/default/gc_thresh{number}").unlink()
    (why,) = _not_host(node)
    assert "hostNetwork: true" in why


def _not_host(node: NetworkProc) -> list[str]:
    report = examine_machine("n1", node.proc, Settings(), 0.0)
    return [each.why for each in report.unseen if "neighbour tables" in each.what]


def test_pod_network_without_a_plan_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (("--pod-network=native",), ("--here", "--pod-network=native")):
        assert run(["network", "doctor", *arguments]) == ExitCode.BAD_INPUT
        assert "--pod-network has an effect only with --here and --at" in capsys.readouterr().err


@pytest.mark.parametrize("network", ["native", "routes", "overlay"])
def test_fix_of_the_planned_tables_has_the_values_of_the_plan(
    network: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = NetworkProc(tmp_path / "proc")
    plan = ("--at=7500", f"--pod-network={network}")
    run(["network", "doctor", "--here", f"--proc={node.proc}", "--window=0.1", "-o", "json", *plan])
    findings = json.loads(capsys.readouterr().out)["findings"]
    finding = next(each for each in findings if each["id"] == "neighbours-planned")
    values = {int(text) for command in finding["fix"]["commands"] for text in re.findall(r"=(\d+)", command)}
    entries = neighbour_entries(network, 7500, 110, 1000)  # type: ignore[arg-type]
    assert values == set(thresholds(entries))
    assert f"{entries} entries are needed" in finding["title"]
