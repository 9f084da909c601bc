from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.errors import NotFound
from muster.kube.metrics import KubeMetrics, kube_metrics
from muster.kube.objects.core import ConfigMap, Namespace, ServiceAccount
from muster.kube.objects.meta import ObjectMeta
from tests.support.apiserver import ApiServer
from tests.support.waiting import until


@pytest.fixture
def metrics() -> KubeMetrics:
    return kube_metrics(CollectorRegistry())


@pytest.fixture
async def client(cluster_config: ClusterConfig, metrics: KubeMetrics) -> AsyncIterator[Client]:
    async with Client(cluster_config, timeout_s=20, metrics=metrics) as made:
        yield made


@pytest.fixture
def embedded(api_server: ApiServer) -> bool:
    """Whether this is the embedded API server."""
    return api_server.kind == "embedded"


async def _furnished(client: Client, namespace: str) -> bool:
    try:
        await client.get(ServiceAccount, "default", namespace)
        await client.get(ConfigMap, "kube-root-ca.crt", namespace)
    except NotFound:
        return False
    return True


@pytest.fixture
async def namespace(client: Client) -> AsyncIterator[str]:
    """A namespace of the test's own; the API server empties it on its own time."""
    name = f"kube-{uuid.uuid4().hex[:10]}"
    await client.create(Namespace(metadata=ObjectMeta(name=name)))
    await until("the namespace has a service account", lambda: _furnished(client, name))
    yield name
    await client.delete(Namespace, name)
