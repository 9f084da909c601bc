"""What the command line says where nothing was found, nothing answers, or an option is not ours."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from aiohttp import web

from muster.cli.errors import ExitCode
from muster.cli.main import run
from muster.embedded.layout import ClusterSpec, Layout, ProcessId

JOB = "/apis/muster.dev/v1alpha1/namespaces/default/trainingjobs/train"
PODS = "/api/v1/namespaces/default/pods"
LOG = "--- muster: attempt 2: node 0 of 1, none, from the beginning ---\ntwo\n--- muster: attempt 3 ---\nthree\n"


def kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "config"
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "c", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "c"}}],
        "current-context": "c",
    }
    path.write_text(yaml.safe_dump(config))
    return path


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
    meta = {"namespace": "default", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    job = {
        "apiVersion": "muster.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "train", "uid": "job", **meta},
        "spec": {"replicas": 1, "launcher": "none", "image": "i", "command": ["true"]},
        "status": {"phase": "Succeeded", "attempt": 3},
    }
    owner = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob", "name": "train", "uid": "job"}
    pod_meta = {
        "name": "train-0-2",
        "uid": "pod",
        "labels": {"muster.dev/gang": "train", "muster.dev/slot": "0"},
        "annotations": {"muster.dev/attempt": "2"},
        "ownerReferences": [owner],
        **meta,
    }
    state = {"name": "worker", "state": {"terminated": {"exitCode": 0}}}
    pod = {"metadata": pod_meta, "spec": {}, "status": {"phase": "Succeeded", "containerStatuses": [state]}}

    async def answer(request: web.Request) -> web.Response:
        if request.path == JOB:
            return web.json_response(job)
        if request.path == PODS:
            return web.json_response({"metadata": {"resourceVersion": "1"}, "items": [pod]})
        return web.Response(text=LOG if request.path == f"{PODS}/train-0-2/log" else "", status=200)

    loop = asyncio.new_event_loop()
    ready, stop = threading.Event(), asyncio.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    async def serve() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        runner = web.AppRunner(app, shutdown_timeout=1)
        await runner.setup()
        await web.SockSite(runner, listener).start()
        ready.set()
        await stop.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(20)
        port = listener.getsockname()[1]
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, f"http://127.0.0.1:{port}")))
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(20)
        loop.close()


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
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, f"http://127.0.0.1:{port}")))
    monkeypatch.setattr("muster.cli.target._RETRY_S", 0.1)
    if up:
        Layout(state).daemon_file.write_bytes(msgspec.json.encode(ProcessId.of(os.getpid())))
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
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, "https://127.0.0.1:20001")))
    assert run(["fault", *arguments]) == ExitCode.NO_CLUSTER
    said = capfd.readouterr().err
    assert "the embedded cluster 'mine' is not running" in said
    assert "muster up --name mine" in said


def test_faults_are_for_embedded_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, "https://127.0.0.1:20002")))
    assert run(["fault", "node", "node-1"]) == ExitCode.BAD_INPUT
    assert "faults are for embedded clusters only" in capfd.readouterr().err
