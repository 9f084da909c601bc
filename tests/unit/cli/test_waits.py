"""Issue 11.16: commands that wait exit with 6 when the time is up, and with 1 when the job has failed."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from muster.cli.jobs import suspend
from muster.cli.main import run
from muster.cli.nodes import requests
from tests.unit.kube.fakeapi import FakeApi, fake_api

SPEC = {"replicas": 1, "image": "x", "command": ["true"], "gpusPerNode": 0, "stopGraceSeconds": 1}


async def called(api: FakeApi, tmp_path: Path, *args: str) -> int:
    """Run `muster ARGS` against the server, in a thread of its own; returns the exit status."""
    config = tmp_path / "config"
    config.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": "default"}}],
                "clusters": [{"name": "here", "cluster": {"server": api.url}}],
                "users": [{"name": "me", "user": {}}],
            }
        )
    )
    return await asyncio.to_thread(run, [*args, "--kubeconfig", str(config)])


def put_job(api: FakeApi, phase: str, *, suspended: bool = False) -> None:
    api.put("train", resource="trainingjobs", spec={**SPEC, "suspend": suspended}, status={"phase": phase})


@pytest.mark.parametrize(
    ("args", "phase", "suspended", "words"),
    [
        (("stop", "train", "--wait"), "Running", False, "'train' has not stopped after 1 s"),
        (("resume", "train", "--wait", "--timeout", "1s"), "Suspended", True, "'train' does not run after 1 s"),
        (("status", "train", "--follow", "--timeout", "1s"), "Running", False, "'train' has not ended after 1 s"),
    ],
)
async def test_a_wait_for_a_job_that_takes_too_long_exits_with_6(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    args: tuple[str, ...],
    phase: str,
    suspended: bool,
    words: str,
) -> None:
    monkeypatch.setattr(suspend, "_STOPPED_S", 0)
    async with fake_api() as api:
        put_job(api, phase, suspended=suspended)
        code = await called(api, tmp_path, *args)
    assert (code, words in capfd.readouterr().err) == (6, True)


@pytest.mark.parametrize("phase", ["Pending", "Failed", "Succeeded"])
async def test_run_and_wait_exits_as_the_job_did_or_with_6(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], phase: str
) -> None:
    manifest: dict[str, Any] = {"apiVersion": "muster.dev/v1alpha1", "kind": "TrainingJob"}
    path = tmp_path / "job.json"
    path.write_text(json.dumps({**manifest, "metadata": {"name": "train"}, "spec": SPEC}))
    async with fake_api() as api:

        def created(request: Any) -> None:
            if request.method == "GET" and "default/train" in api.objects.get("trainingjobs", {}):
                put_job(api, phase)

        api.before.append(created)
        code = await called(
            api, tmp_path, "run", "-f", str(path), "--wait", "--timeout", "1s" if phase == "Pending" else "1m"
        )
    assert code == {"Pending": 6, "Failed": 1, "Succeeded": 0}[phase]
    assert ("'train' has not ended after 1 s" in capfd.readouterr().err) == (phase == "Pending")


async def test_a_resumed_job_that_fails_exits_with_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with fake_api() as api:
        put_job(api, "Suspended", suspended=True)

        def failing(request: Any) -> None:
            if request.method == "PATCH":
                put_job(api, "Failed")

        api.before.append(failing)
        code = await called(api, tmp_path, "resume", "train", "--wait")
    assert code == 1


def who_asks(request: web.Request) -> web.Response | None:
    """Answer a SelfSubjectReview, and which path it has."""
    if request.path.endswith("/selfsubjectreviews"):
        return web.json_response({"status": {"userInfo": {"username": "ann"}}}, status=201)
    if request.path.endswith("/authentication.k8s.io/v1"):
        kind = {"name": "selfsubjectreviews", "kind": "SelfSubjectReview", "namespaced": False, "verbs": ["create"]}
        return web.json_response({"kind": "APIResourceList", "groupVersion": "v1", "resources": [kind]})
    return None


async def test_a_quarantine_that_is_not_carried_out_exits_with_6(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "_PATIENCE_S", 0.0)
    async with fake_api() as api:
        api.put("node-0", resource="nodes", namespace="")
        api.before.append(who_asks)
        code = await called(api, tmp_path, "nodes", "quarantine", "node-0", "--reason", "smells of smoke")
    assert (code, "is not in quarantine after 0 s" in capfd.readouterr().err) == (6, True)


@pytest.mark.parametrize("args", [("resume", "train"), ("status", "train"), ("run", "train.py")])
async def test_a_limit_without_a_wait_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    async with fake_api() as api:
        code = await called(api, tmp_path, *args, "--timeout", "1m")
    assert (code, "--timeout limits a wait" in capfd.readouterr().err) == (2, True)
