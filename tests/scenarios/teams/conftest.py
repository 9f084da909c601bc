from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from muster.kube.client import Client
from muster.kube.config import ClusterConfig
from muster.kube.core import Namespace
from muster.kube.metrics import kube_metrics
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
