from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from muster.cli.main import run
from muster.kube.client import Client
from muster.kube.config import ClusterConfig
from muster.kube.core import Namespace
from muster.kube.metrics import kube_metrics
from tests.support.apiserver import ApiServer
from tests.support.namespaces import install_kinds, make_namespace
from tests.support.teamclusters import TeamCluster


@pytest.fixture
async def client(cluster_config: ClusterConfig) -> AsyncIterator[Client]:
    async with Client(cluster_config, timeout_s=20, metrics=kube_metrics(CollectorRegistry())) as made:
        yield made


@pytest.fixture
async def cluster(client: Client) -> AsyncIterator[TeamCluster]:
    """A pool without nodes, a namespace for the ConfigMap; nobody manages it yet."""
    await install_kinds(client)
    name = f"teams-{uuid.uuid4().hex[:10]}"
    await make_namespace(client, name)
    made = TeamCluster(client, name)
    try:
        yield made
    finally:
        await made.clean()
        await client.delete(Namespace, name)


class Typed:
    """Types commands and reads what they print."""

    def __init__(self, server: ApiServer, namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._kubeconfig = ["--kubeconfig", str(server.kubeconfig)]
        self._namespace = ["--system-namespace", namespace]
        self._capsys = capsys

    async def fails(self, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        options = self._kubeconfig if "plan" in words else [*self._kubeconfig, *self._namespace]
        code = await asyncio.to_thread(run, [*words, *options])
        said = self._capsys.readouterr()
        return code, said.out, said.err

    async def ok(self, *words: str) -> str:
        code, out, err = await self.fails(*words)
        assert code == 0, (out, err)
        return out

    async def json(self, *words: str) -> Any:
        return json.loads(await self.ok(*words, "-o", "json"))


@pytest.fixture
def typed(api_server: ApiServer, cluster: TeamCluster, capsys: pytest.CaptureFixture[str]) -> Typed:
    return Typed(api_server, cluster.namespace, capsys)
