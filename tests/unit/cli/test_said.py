"""What the command line says where nothing was found, nothing answers, or an option is not ours."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from muster.cli.errors import ExitCode
from muster.cli.main import run
from muster.embedded.layout import ClusterSpec, Layout, ProcessId
from tests.support import onejob

LOG = "--- muster: attempt 2: node 0 of 1, none, from the beginning ---\ntwo\n--- muster: attempt 3 ---\nthree\n"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder without a cluster, so that one of this machine's user is not found."""
    monkeypatch.setenv("MUSTER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "state").mkdir()
    return tmp_path / "state"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An API server with one job at attempt 3, whose pod is of attempt 2."""

    async def answer(request: web.Request) -> web.Response:
        if request.path == onejob.JOB:
            return web.json_response(onejob.job(phase="Succeeded", attempt=3))
        if request.path == onejob.PODS:
            return web.json_response(onejob.pods(onejob.pod(2, "Succeeded", {"terminated": {"exitCode": 0}})))
        return web.Response(text=LOG if request.path == f"{onejob.PODS}/train-0-2/log" else "", status=200)

    with onejob.served(answer) as server:
        monkeypatch.setenv("KUBECONFIG", str(onejob.write_kubeconfig(tmp_path, server)))
        yield


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("flags", "code", "out"),
    [
        (["--attempt", "99"], ExitCode.NOT_FOUND, ""),
        (["--attempt", "99", "--follow"], ExitCode.NOT_FOUND, ""),
        (["--attempt", "1"], ExitCode.NOT_FOUND, ""),
        (["--previous", "--tail", "1"], ExitCode.DONE, "[0] two\n"),
        (["--previous", "--tail", "0"], ExitCode.DONE, ""),
        (["--attempt", "3", "--tail", "1", "--follow"], ExitCode.DONE, "[0] three\n"),
    ],
)
def test_an_attempt_without_lines_is_not_found(
    flags: list[str], code: ExitCode, out: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["logs", "train", *flags]) == code
    said = capfd.readouterr()
    assert said.out == out
    if code:
        wanted = f"no lines of attempt {flags[1]}; the job is at attempt 3; logs of an attempt go with its pods"
        assert wanted in said.err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["x.py", "--lr", "0.1"], "options of the script go after --: muster run x.py -- --lr 0.1"),
        (["--env", "KEY=secret", "x.py", "a b", "--lr=1", "--nodes", "2"], "muster run x.py -- 'a b' --lr=1"),
        (["x.py", "--launcher", "none", "--l", "1"], "muster run x.py -- --l 1"),
        (["x.py", "-zy"], "muster run x.py -- -zy"),
        (["x.py", "--nodse", "2"], "did you mean --nodes? options of the script go after --"),
    ],
)
def test_an_unknown_option_after_the_script(arguments: list[str], hint: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["run", *arguments]) == ExitCode.BAD_INPUT
    said = capfd.readouterr().err
    assert hint in said
    assert "secret" not in said


def test_an_unknown_option_before_the_script_is_ours(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--lr", "x.py"]) == ExitCode.BAD_INPUT
    assert "go after --" not in capfd.readouterr().err


@pytest.mark.parametrize("up", [False, True])
def test_an_unreachable_cluster_with_and_without_one_on_this_machine(
    up: bool, state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("muster.cli.target._RETRY_S", 0.1)
    if up:
        Layout(state).daemon_file.write_bytes(msgspec.json.encode(ProcessId.of(os.getpid())))
    with socket.socket() as taken:  # it does not listen, and no other process gets its port
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setenv("KUBECONFIG", str(onejob.write_kubeconfig(tmp_path, url)))
        assert run(["list"]) == ExitCode.NO_CLUSTER
    said = capfd.readouterr().err
    assert ("use --embedded for the cluster on this machine" in said) == up
    assert ("muster up" in said) == (not up)


@pytest.mark.parametrize("arguments", [["rank", "slow", "1"], ["node", "node-1"], ["return", "node-1"]])
def test_faults_where_the_daemon_is_gone(
    arguments: list[str],
    state: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    Layout(state).write_spec(ClusterSpec(name="mine", port=20001))
    monkeypatch.setenv("KUBECONFIG", str(onejob.write_kubeconfig(tmp_path, "https://127.0.0.1:20001")))
    assert run(["fault", *arguments]) == ExitCode.NO_CLUSTER
    said = capfd.readouterr().err
    assert "the embedded cluster 'mine' is not running" in said
    assert "muster up --name mine" in said


def test_faults_are_for_embedded_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(onejob.write_kubeconfig(tmp_path, "https://127.0.0.1:20002")))
    assert run(["fault", "node", "node-1"]) == ExitCode.BAD_INPUT
    assert "faults are for embedded clusters only" in capfd.readouterr().err
