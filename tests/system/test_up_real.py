"""Issue 11.30: `muster up --real` starts a real control plane that stays, survives restarts and leaves nothing."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.controlplane.goprograms import NotBuiltError, find_built
from tests.support.kubectl import kubectl_program
from tests.support.musterprogram import Muster, muster_in
from tests.support.waiting import eventually

CACHE = os.environ.get("MUSTER_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")) + "/muster"


@pytest.fixture
def muster(tmp_path: Path) -> Iterator[Muster]:
    with muster_in(tmp_path / "home") as muster:
        yield muster


def program(muster: Muster, name: str) -> int:
    """The process of a program of the control plane; 0 where it does not run."""
    return next((pid for pid, command in muster.processes().items() if f"/{name} " in command), 0)


@pytest.mark.timeout(600)
def test_a_real_control_plane_stays_and_goes_without_a_trace(muster: Muster, control_plane_binaries: Path) -> None:
    try:
        find_built("helm", build=False)
    except NotBuiltError as error:
        pytest.skip(str(error))
    muster.env["MUSTER_CACHE_DIR"] = CACHE
    muster.work = muster.home / "work"  # the state folder lies in the home, and the working folder is shipped
    muster.work.mkdir()
    (muster.work / "train.py").write_text("print('hello from a rank')\n")
    assert "is up" in muster.ok("up", "--real", "--nodes", "1", "--gpus", "0", timeout_s=300)
    muster.ok("run", "train.py", "--name", "first", "--wait", timeout_s=120)
    assert muster.json("status", "first")["status"]["phase"] == "Succeeded"
    assert "hello from a rank" in muster.ok("logs", "first")
    assert "a real control plane" in muster.ok("up", "--real")

    key = ("get", "configmap", "muster-cache", "--namespace=muster-system", "--output=jsonpath={.data}")
    eventually(
        "the controller may publish the key of data caches",
        lambda: "ticket.pub" in muster.run(*key, program=kubectl_program()).stdout,
    )

    killed = program(muster, "kube-apiserver")
    os.kill(killed, signal.SIGKILL)
    eventually("kube-apiserver is started again", lambda: program(muster, "kube-apiserver") not in (0, killed), 60)
    eventually("it answers", lambda: muster.run("list").returncode == 0, 60)

    os.kill(next(pid for pid, command in muster.processes().items() if "embedded.daemon" in command), signal.SIGKILL)
    eventually("its programs end with the daemon", lambda: not program(muster, "etcd"), 30)
    assert "continues" in muster.ok("up", timeout_s=300)
    assert muster.json("status", "first")["status"]["phase"] == "Succeeded", "what etcd held is there again"
    muster.ok("run", "train.py", "--name", "second", "--wait", timeout_s=120)

    muster.ok("down")
    assert muster.processes() == {}
    assert not muster.folder().exists()
    assert not muster.kubeconfig.exists()


def test_without_go_the_error_says_what_to_do_and_nothing_is_left(muster: Muster, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "env", "awk", "cat", "cut", "sha256sum", "uname", "dirname"):
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    nowhere = {"PATH": str(tools), "MUSTER_CACHE_DIR": str(tmp_path / "cache"), "KUBEBUILDER_ASSETS": ""}
    done = muster.run("up", "--real", env=nowhere)
    assert done.returncode == 1
    assert "no real control plane here: no controlplane is built: install Go" in done.stderr
    assert "leave out --real" in done.stderr
    assert not muster.folder().exists()
