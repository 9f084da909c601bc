"""Issue 11.3: `muster stacks` and `muster exec` name the right that is missing."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.objects.auth import TokenRequest
from tests.scenarios.trainingjobs.conftest import Arena
from tests.support.accessreviews import until_allowed
from tests.support.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.kubernetes_since("1.36"),  # older API servers speak SPDY with kubelets, the process kubelet does not
]

WAITS = "import time; time.sleep(600)"
RBAC = "rbac.authorization.k8s.io"
READER = [
    {"apiGroups": ["muster.dev"], "resources": ["trainingjobs"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
]


async def kubeconfig_of_reader(arena: Arena) -> Path:
    """Of a service account that may read jobs and pods."""
    meta = {"name": "reader", "namespace": arena.namespace}
    role = {"apiGroup": RBAC, "kind": "Role", "name": "reader"}
    subjects = [{"kind": "ServiceAccount", **meta}]
    for each in (
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": f"{RBAC}/v1", "kind": "Role", "metadata": meta, "rules": READER},
        {"apiVersion": f"{RBAC}/v1", "kind": "RoleBinding", "metadata": meta, "roleRef": role, "subjects": subjects},
    ):
        await arena.client.create(each)
    token = (await arena.client.create_token("reader", TokenRequest(), namespace=arena.namespace)).status.token
    return with_token(Path(arena.server.kubeconfig), token, arena.folder / "reader.kubeconfig")


def with_token(config: Path, token: str, path: Path) -> Path:
    """The kubeconfig with another user."""
    body = yaml.safe_load(config.read_text())
    body["users"] = [{"name": user["name"], "user": {"token": token}} for user in body["users"]]
    path.write_text(yaml.safe_dump(body))
    return path


async def allow(arena: Arena, *verbs: str) -> None:
    rules = [*READER, {"apiGroups": [""], "resources": ["pods/exec"], "verbs": list(verbs)}]
    resource = await arena.client.resource(f"{RBAC}/v1", "Role")
    await arena.client.request(
        "PATCH",
        resource.path(arena.namespace, "reader"),
        body=json.dumps({"rules": rules}).encode(),
        headers={"Content-Type": "application/merge-patch+json"},
    )


async def run(arena: Arena, config: Path, *arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "muster.cli.main", *arguments[:2], "-n", arena.namespace, "--kubeconfig", str(config),
        *arguments[2:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    return process.returncode, out.decode()


async def test_the_missing_right_is_named(arena: Arena) -> None:
    if arena.server.kind == "embedded":
        pytest.skip("the embedded API server has one user, who may do everything")
    await arena.submit("train", WAITS)
    await arena.phase("train", "Running", 1)
    config = await kubeconfig_of_reader(arena)
    async with Client(load_config(config)) as reader:
        for rule in READER:
            await until_allowed(reader, rule, arena.namespace)
    for next_verbs in ["create"], ["create", "get"]:
        for arguments in ("stacks", "train"), ("exec", "train", "--", "true"):
            code, said = await run(arena, config, *arguments)
            assert code == 1
            words = " ".join(said.split())
            assert f"you may not run commands in pods of namespace {arena.namespace}" in words
            assert "ask for the verbs get and create on the resource pods/exec there" in words
        await allow(arena, *next_verbs)

    async def allowed() -> bool:
        return (await run(arena, config, "exec", "train", "--", "true"))[0] == 0

    await until("the API server knows the new role", allowed)
    code, said = await run(arena, config, "stacks", "train")
    assert (code, said.splitlines()[0]) == (0, "ranks 0-1 of 2, by handler")
