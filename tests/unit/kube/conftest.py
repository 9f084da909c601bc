from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from prometheus_client import CollectorRegistry

from muster.kube.client import Client
from muster.kube.metrics import KubeMetrics, kube_metrics
from tests.support.waiting import TIMEOUT_S
from tests.unit.kube.fakeapi import FakeApi, fake_api


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with fake_api() as server:
        yield server


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> KubeMetrics:
    return kube_metrics(registry)


@pytest.fixture
async def client(api: FakeApi, metrics: KubeMetrics) -> AsyncIterator[Client]:
    async with Client(api.config(), timeout_s=TIMEOUT_S, metrics=metrics) as made:
        yield made
