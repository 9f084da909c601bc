"""`muster controller --teams` as two processes; on the real API server with no rights but the chart's."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from muster.api.names import CONTROLLER_LEASE
from muster.controlplane.children import Child
from muster.kube.client import Client
from muster.kube.errors import AlreadyExists, NotFound
from muster.kube.objects.auth import TokenRequest
from muster.kube.objects.coordination import Lease
from muster.kube.objects.node import Node
from tests.scenarios.deploy.conftest import CHART, Helm, helm_program, offline_helm  # noqa: F401
from tests.support.anyserver import BY_CONTROLLER
from tests.support.apiserver import ApiServer
from tests.support.teamclusters import TeamCluster
from tests.support.waiting import until

ACCOUNT = "muster-controller"
RIGHTS = ("serviceaccount", "rbac", "teams-allocation-rbac")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]  # processes start, a lease expires, requests are waited out


@pytest.fixture
async def kubeconfig(
    api_server: ApiServer, cluster: TeamCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Path]:
    """An administrator's on the embedded server, which has no RBAC; the service account's on the real one."""
    if api_server.kind == "embedded":
        yield api_server.kubeconfig
        return
    helm: Helm = request.getfixturevalue("offline_helm")
    shown = [f"--show-only=templates/{name}.yaml" for name in RIGHTS]
    rendered = helm.ok(
        "template", "m", str(CHART), "--namespace", cluster.namespace, "--set=teams.enabled=true", *shown
    )
    made = [each for each in yaml.safe_load_all(rendered) if each]
    for each in made:
        with contextlib.suppress(AlreadyExists):
            await cluster.client.create(each)
    try:
        yield await _of_account(cluster, api_server, tmp_path)
    finally:
        for each in made:
            await _delete(cluster.client, each)


async def _delete(client: Client, made: dict[str, object]) -> None:
    meta = made["metadata"]
    assert isinstance(meta, dict)
    resource = await client.resource(str(made["apiVersion"]), str(made["kind"]))
    with contextlib.suppress(NotFound):
        await client.request("DELETE", resource.path(meta.get("namespace"), meta["name"]))


async def _of_account(cluster: TeamCluster, api_server: ApiServer, folder: Path) -> Path:
    token = await cluster.client.create_token(ACCOUNT, TokenRequest(), namespace=cluster.namespace)
    assert token.status is not None
    config = yaml.safe_load(api_server.kubeconfig.read_text())
    for each in config["users"]:
        each["user"] = {"token": token.status.token}
    path = folder / "account.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@BY_CONTROLLER
async def test_the_second_process_takes_over_when_the_first_dies(
    cluster: TeamCluster, kubeconfig: Path, tmp_path: Path
) -> None:
    await cluster.add_nodes(4)
    await cluster.configure(vision=2)
    command = [sys.executable, "-m", "muster.cli.main", "controller", "--teams", f"--kubeconfig={kubeconfig}"]
    command += [f"--namespace={cluster.namespace}", "--lease-duration=3"]
    children = [Child(command, tmp_path / f"controller-{number}.log", dict(os.environ)) for number in range(2)]
    try:
        await cluster.until_owned(vision=2)
        lease = await cluster.client.get(Lease, CONTROLLER_LEASE, cluster.namespace)
        (leader,) = [each for each in children if f"-{each.pid}-" in (lease.spec.holder_identity or "")]
        leader.stop(grace_s=0)
        await cluster.configure(vision=3)
        await cluster.until_owned(vision=3)
        name = next(iter(await cluster.nodes()))
        await cluster.client.patch(Node, name, {"metadata": {"labels": {cluster.key: None}}, "spec": {"taints": None}})

        async def whole() -> bool:
            return await cluster.owners() == {"vision": 3}

        await until("what was taken away is back", whole)
        for each in children:
            said = each.log.read_text()
            assert "forbidden" not in said.lower(), said
    finally:
        for each in children:
            each.stop(grace_s=5)
