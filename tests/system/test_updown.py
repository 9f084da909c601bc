"""`muster up` and `muster down` with real processes: what they start, refuse, survive and leave behind (nothing)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.support.kubectl import kubectl_program
from tests.support.musterprogram import Muster, carrying, exit_code, muster_in
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def muster(tmp_path: Path) -> Iterator[Muster]:
    with muster_in(tmp_path / "home") as muster:
        yield muster


def nothing_remains(muster: Muster, name: str = "embedded") -> None:
    assert muster.processes() == {}
    assert not muster.folder(name).exists()
    mounts = Path("/proc/self/mounts").read_text()
    assert str(muster.home) not in mounts


def kill_everything(muster: Muster) -> None:
    """SIGKILL for every process, the daemon first."""
    daemon = json.loads((muster.folder() / "daemon.json").read_text())["pid"]
    for pid in [daemon, *(pid for pid in muster.processes() if pid != daemon)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    eventually("every process gone", lambda: not muster.processes())


def test_up_gives_a_cluster_that_kubectl_can_use_and_down_removes_all_of_it(muster: Muster) -> None:
    done = muster.run("up", "--nodes", "2", "--gpus", "4")
    assert done.returncode == 0, done
    assert "2 nodes with 4 GPUs each" in done.stdout
    assert done.stderr.startswith("starting the cluster 'embedded': starting the ")
    assert "not running" not in done.stderr
    nodes = muster.run("--help", program=kubectl_program())  # kubectl is there
    assert nodes.returncode == 0
    listed = json.loads(muster.run("get", "nodes", "-o", "json", program=kubectl_program()).stdout)["items"]
    assert [node["metadata"]["name"] for node in listed] == ["node-0", "node-1"]
    for node in listed:
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "4"
        assert node["metadata"]["labels"]["muster.dev/rack"] == "rack-0"
        assert "topology.kubernetes.io/zone" in node["metadata"]["labels"]
    assert muster.run("get", "trainingjobs", program=kubectl_program()).returncode == 0
    assert (muster.folder() / "control.sock").stat().st_mode & 0o777 == 0o600
    assert muster.folder().stat().st_mode & 0o777 == 0o700

    again = muster.run("up", "--nodes", "2", "--gpus", "4")
    assert (again.returncode, "up already" in again.stdout) == (0, True)
    assert muster.run("up").returncode == 0
    crd = "trainingjobs.muster.dev"  # issue 11.10: up repairs what was deleted
    assert muster.run("delete", "crd", crd, program=kubectl_program()).returncode == 0
    repaired = muster.run("up")
    assert (repaired.returncode, crd in repaired.stderr) == (0, True)
    assert muster.run("list").returncode == 0
    other = muster.run("up", "--nodes", "3")
    assert other.returncode == 5
    assert "another shape" in other.stderr
    assert "muster down" in other.stderr

    assert "is gone" in muster.ok("down")
    nothing_remains(muster)
    assert not muster.kubeconfig.exists()


def test_the_users_own_kubeconfig_is_left_as_it_was(muster: Muster) -> None:
    own = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "work", "cluster": {"server": "https://work.invalid"}}],
        "users": [{"name": "work", "user": {"token": "t"}}],
        "contexts": [{"name": "work", "context": {"cluster": "work", "user": "work"}}],
        "current-context": "work",
    }
    muster.kubeconfig.parent.mkdir()
    muster.kubeconfig.write_text(yaml.safe_dump(own))
    said = muster.ok("up", "--nodes", "1", "--name", "mine")
    assert "--context muster-mine" in said
    merged = yaml.safe_load(muster.kubeconfig.read_text())
    assert merged["current-context"] == "work"
    assert [entry["name"] for entry in merged["contexts"]] == ["work", "muster-mine"]
    assert muster.run("list", "--context", "muster-mine").returncode == 0
    muster.ok("down", "--name", "mine")
    assert yaml.safe_load(muster.kubeconfig.read_text()) == own
    nothing_remains(muster, "mine")


def test_a_port_in_use_is_refused_and_nothing_is_left(muster: Muster) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = muster.run("up", "--nodes", "1", "--port", str(port))
    assert done.returncode == 5
    assert f"port {port}" in done.stderr
    assert "--port" in done.stderr
    nothing_remains(muster)
    assert not muster.kubeconfig.exists()


@pytest.mark.parametrize("stage", ["starting the API server", "waiting for nodes"])
def test_ctrl_c_while_starting_leaves_nothing(muster: Muster, stage: str) -> None:
    starting = muster.start("up", "--nodes", "2")
    eventually(f"it says {stage!r}", lambda: stage in starting.log.read_text())
    os.kill(starting.pid, signal.SIGINT)
    assert exit_code(starting) == 130
    nothing_remains(muster)


@pytest.mark.parametrize("stage", ["starting the daemon", "starting the API server"])
def test_a_second_up_waits_until_what_the_first_starts_is_ready(muster: Muster, stage: str) -> None:
    first = muster.start("up", "--nodes", "2")
    eventually(f"it says {stage!r}", lambda: stage in first.log.read_text())
    second = muster.run("up")
    assert second.returncode == 0, second
    assert "up already: 2 nodes" in second.stdout
    assert muster.run("list").returncode == 0, "its context is there"
    control = muster.run("get", "nodes", "-o", "name", program=kubectl_program())
    assert control.stdout.split() == ["node/node-0", "node/node-1"]
    assert exit_code(first) == 0, first.log.read_text()
    muster.ok("down")
    nothing_remains(muster)


def test_a_second_up_says_so_where_the_first_is_given_up(muster: Muster) -> None:
    first = muster.start("up", "--nodes", "2")
    eventually("it starts", lambda: "starting the API server" in first.log.read_text())
    second = muster.start("up")
    eventually("it waits", lambda: "is being started already: " in second.log.read_text())
    os.kill(first.pid, signal.SIGINT)
    assert (exit_code(first), exit_code(second)) == (130, 1), second.log.read_text()
    assert "error: " in second.log.read_text()
    nothing_remains(muster)


def test_a_killed_cluster_continues_where_it_was(muster: Muster) -> None:
    muster.ok("up", "--nodes", "2")
    port = muster.spec()["port"]
    assert muster.run("create", "configmap", "kept", program=kubectl_program()).returncode == 0
    kill_everything(muster)
    assert muster.run("list").returncode == 3
    said = muster.ok("up")
    assert "continues" in said
    assert muster.spec()["port"] == port
    assert muster.run("get", "configmap", "kept", program=kubectl_program()).returncode == 0
    muster.ok("down")
    nothing_remains(muster)


def test_down_after_everything_was_killed(muster: Muster) -> None:
    muster.ok("up", "--nodes", "1")
    kill_everything(muster)
    muster.ok("down")
    nothing_remains(muster)
    assert not muster.kubeconfig.exists()


def test_the_daemon_alone_killed_takes_its_programs_along(muster: Muster) -> None:
    muster.ok("up", "--nodes", "1")
    os.kill(json.loads((muster.folder() / "daemon.json").read_text())["pid"], signal.SIGKILL)
    eventually("programs gone", lambda: not carrying(f"MUSTER_CLUSTER_ID={muster.spec()['cluster_id']}"))


def test_a_crashed_program_is_started_again_and_a_vanished_node_is_not(muster: Muster) -> None:
    muster.ok("up", "--nodes", "2")

    def programs(name: str) -> set[int]:
        return {pid for pid, command in muster.processes().items() if name in command and "-I -S" not in command}

    (controller,) = programs("muster.cli.main controller")
    os.kill(controller, signal.SIGKILL)
    eventually("a new controller", lambda: programs("muster.cli.main controller") - {controller})
    assert programs("--node=node-1")
    muster.ok("fault", "node", "node-1")
    assert not programs("--node=node-1")
    eventually("node-1 not ready", lambda: _ready(muster, "node-1") != "True")
    assert not programs("--node=node-1")
    assert muster.run("fault", "return", "node-1").stderr == "node-1 comes back\n"
    eventually("node-1 ready again", lambda: _ready(muster, "node-1") == "True")
    there = muster.run("fault", "return", "node-1")
    assert (there.returncode, there.stderr) == (0, "node-1 is there already: it has not vanished\n")
    for what in ("node", "return"):
        unknown = muster.run("fault", what, "node-9")
        assert unknown.returncode == 4
        assert "node-0, node-1" in unknown.stderr


def test_two_clusters_beside_each_other(muster: Muster) -> None:
    muster.ok("up", "--nodes", "1", "--name", "one")
    clash = muster.run("up", "--nodes", "1", "--name", "two", "--port", str(muster.spec("one")["port"]))
    assert clash.returncode == 5
    assert "in use" in clash.stderr
    muster.ok("down", "--name", "one")
    nothing_remains(muster, "one")


def _ready(muster: Muster, node: str) -> str:
    path = "jsonpath={.status.conditions[?(@.type=='Ready')].status}"
    return muster.run("get", "node", node, "-o", path, program=kubectl_program()).stdout


def test_help_is_quick_enough_to_type(muster: Muster) -> None:
    """No timing: only that nothing heavy is imported for it."""
    code = "import sys; from muster.cli.main import run; run(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [*_python(), "-c", code], capture_output=True, text=True, timeout=30, check=True, env=muster.env
    )
    loaded = set(done.stderr.split())
    assert "click" in loaded
    assert not loaded & {"aiohttp", "rich", "yaml", "cryptography", "uvloop"}


def _python() -> list[str]:
    import sys

    return [sys.executable]
