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
from muster.kube.connection.config import ClusterConfig
from muster.kube.connection.transport import Answer, Fence, Headers, HttpTransport, Params
from muster.kube.metrics import kube_metrics
from muster.kube.objects.core import Namespace
from tests.support.apiserver import ApiServer
from tests.support.namespaces import install_kinds, make_namespace
from tests.support.teamclusters import TeamCluster


@pytest.fixture
async def client(cluster_config: ClusterConfig) -> AsyncIterator[Client]:
    async with Client(cluster_config, timeout_s=20, metrics=kube_metrics(CollectorRegistry())) as made:
        yield made


@pytest.fixture
async def cluster(client: Client) -> AsyncIterator[TeamCluster]:
    """A pool without nodes, a namespace for the ConfigMap. No controller manages it yet."""
    await install_kinds(client)
    name = f"teams-{uuid.uuid4().hex[:10]}"
    await make_namespace(client, name)
    made = TeamCluster(client, name)
    try:
        yield made
    finally:
        await made.clean()
        await client.delete(Namespace, name)


class Audited(HttpTransport):
    """HTTP, with every request that may write noted."""

    def __init__(self, config: ClusterConfig) -> None:
        super().__init__(config, user_agent="muster-test", connections=16)
        self.writes: list[tuple[str, str, int]] = []

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Params,
        body: bytes | None,
        headers: Headers,
        timeout_s: float,
        fence: Fence | None = None,
    ) -> Answer:
        answer = await super().request(
            method, path, params=params, body=body, headers=headers, timeout_s=timeout_s, fence=fence
        )
        if method != "GET":
            self.writes.append((method, path, answer.status))
        return answer

    def of_nodes(self) -> list[tuple[str, str, int]]:
        return [each for each in self.writes if "/nodes/" in each[1]]

    def written(self) -> int:
        """Writes of nodes that went through, as far as their answers have come: what they did may be seen before."""
        return sum(status == 200 for _, _, status in self.of_nodes())


@pytest.fixture
async def audited(cluster_config: ClusterConfig) -> AsyncIterator[tuple[Client, Audited]]:
    wire = Audited(cluster_config)
    metrics = kube_metrics(CollectorRegistry())
    async with Client(cluster_config, transport=wire, metrics=metrics) as client:
        yield client, wire  # asked for before `cluster`, which ends its managers first


class Typed:
    """Types commands and reads what they print."""

    def __init__(self, server: ApiServer, namespace: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._kubeconfig = ["--kubeconfig", str(server.kubeconfig)]
        self._namespace = ["--system-namespace", namespace]
        self._capsys = capsys

    async def fails(self, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        alone = {"plan", "history", "quarantine", "release"}.intersection(words)
        options = self._kubeconfig if alone else [*self._kubeconfig, *self._namespace]
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
