"""The real program `muster network agent` with every part on, in a network namespace; and its removal."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from muster.network.agent.parts import PARTS
from muster.network.tuning.part import FILE as TUNING_FILE
from tests.support.networknamespaces import Network, Node, need_namespaces
from tests.support.waiting import eventually

PORT = 9451


class Program:
    """The program on a node. The API server of its kubeconfig is away."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.host, self.folder = node.host, folder
        self.state = folder / "state"
        (folder / "bin").mkdir()
        self.config = folder / "network.yaml"
        self.config.write_text(
            yaml.safe_dump(
                {
                    "pods": {
                        "enabled": True,
                        "socket": f"{folder}/run/cni.sock",
                        "binDir": f"{folder}/bin",
                        "netDir": f"{folder}/net",
                        "hostPorts": False,
                    },
                    "traffic": {"enabled": True, "backend": "nftables", "uplinkInterfaces": ["eth0"]},
                    "uplink": {"enabled": True, "budget": {"in": "1G", "out": "1G"}},
                    "shaping": {"enabled": True, "policing": False},
                    "checks": {"enabled": True},
                    "tuning": {"enabled": True, "neighbours": {"ipv4": [1024, 2048, 4096]}},
                }
            )
        )
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
                    "users": [{"name": "u", "user": {"token": "secret"}}],
                    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                    "current-context": "x",
                }
            )
        )
        self.kubeconfig.chmod(0o600)

    def command(self, *arguments: str) -> tuple[str, ...]:
        folders = (f"--state-dir={self.state}", f"--run-dir={self.folder}/run")
        return (sys.executable, "-m", "muster.cli.main", "network", "agent", *folders, *arguments)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return self.host.start(*self.command(f"--listen=127.0.0.1:{PORT}", *arguments))

    def agent(self) -> tuple[str, ...]:
        return f"--config={self.config}", f"--kubeconfig={self.kubeconfig}", "--node=n1"

    def ended(self, *arguments: str) -> tuple[int, str]:
        process = self.host.start(*self.command(*arguments))
        try:
            out, error = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait(30)
        return process.returncode, (out + error).decode()

    def get(self, path: str) -> tuple[int, str]:
        def get() -> tuple[int, str]:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}{path}", timeout=10) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()
            except OSError:
                return 0, ""

        return self.host.call(get)

    def page(self, name: str) -> Any:
        status, text = self.get(f"/v1/{name}")
        return json.loads(text) if status == 200 else {}

    def tables(self) -> str:
        return self.host.run("nft", "list", "tables")


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    need_namespaces("nft")
    with Network() as network:
        yield Program(network.node(pods=1), tmp_path)


def test_all_parts_run_together_and_are_removed_whatever_the_configuration_says_then(program: Program) -> None:
    running = program.start(*program.agent())
    try:
        eventually("traffic is counted", lambda: program.page("traffic").get("taken_s", 0) > 0)
        names = {each.section for each in PARTS}
        eventually("all parts have pages", lambda: all(program.page(name) for name in names))
        assert program.get("/healthz") == (200, "ok\n")
        assert program.get("/readyz") == (200, "ok\n")
        eventually("pods are masqueraded", lambda: "muster_pods" in program.tables())
        for refused in (program.ended(*program.agent()), program.ended("--remove")):
            assert refused[0] == 1
            assert f"another network agent on this node uses {program.state}" in refused[1]
            assert "network.remove=true" in refused[1]
        assert "inet muster" in program.tables()
        running.terminate()
        assert running.wait(30) == 0
    finally:
        running.kill()
        running.wait(30)
    assert program.ended("--remove") == (0, "".join(f"{each.section}: removed\n" for each in reversed(PARTS)))
    assert program.tables() == ""
    assert program.ended("--remove")[0] == 0


def test_part_that_cannot_be_removed_blocks_no_other_and_is_reported_until_it_is_removed(program: Program) -> None:
    program.host.run("nft", "add", "table", "ip", "muster_pods")
    former = program.state / TUNING_FILE
    former.parent.mkdir(parents=True)
    former.write_text('{"entries": {}}')  # values are restored in the host's namespace only
    code, text = program.ended("--remove")
    assert code == 1
    assert "tuning: not removed: " in text
    assert "not in the host's network namespace" in text
    assert "pods: removed\n" in text
    assert program.tables() == ""
    removing = program.start("--remove")
    try:
        eventually("it reports the failure", lambda: "tuning: not removed" in program.get("/readyz")[1])
        assert program.get("/readyz")[0] == 503
        assert program.get("/healthz")[0] == 200
        removing.terminate()
        assert removing.wait(30) == 1
        former.unlink()
        removing = program.start("--remove")
        eventually("nothing is left", lambda: program.get("/readyz")[0] == 200)
        assert removing.poll() is None
        removing.terminate()
        assert removing.wait(30) == 0
    finally:
        removing.kill()
        removing.wait(30)
