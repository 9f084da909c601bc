"""The key that verifies tickets is in ConfigMap muster-cache while a controller leads, whatever was there before."""

from __future__ import annotations

import random

import pytest
from prometheus_client import CollectorRegistry

from muster.api.cache_ticket import CACHE_CONFIG_MAP, TICKET_KEY, TicketSigner
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.metrics import kube_metrics
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.sim.virtual.network import Calm, InProcessTransport, Trace
from muster.trainingjobs.rendezvous.ticket_key import publish
from tests.support.apicore import Cluster

SPACE = "muster-system"
OLD, NEW = (TicketSigner(secret * 32).public_key for secret in (b"o", b"n"))


@pytest.fixture
def cluster() -> Cluster:
    core = Cluster()
    core.ok("POST", "/api/v1/namespaces", {"metadata": {"name": SPACE}})
    return core


@pytest.fixture
def client(cluster: Cluster) -> Client:
    transport = InProcessTransport(cluster.core, "controller", Calm(random.Random(1)), Trace())
    return Client(ClusterConfig(server="http://none"), transport=transport, metrics=kube_metrics(CollectorRegistry()))


async def _there(client: Client) -> dict[str, str]:
    return dict((await client.get(ConfigMap, CACHE_CONFIG_MAP, SPACE)).data)


async def test_first_leader_creates_the_config_map(client: Client) -> None:
    await publish(client, SPACE, NEW)
    assert (await _there(client))[TICKET_KEY].split() == [NEW]


@pytest.mark.parametrize("known", ["", "damaged\n"])
async def test_key_is_added_to_the_config_map_of_the_chart(client: Client, known: str) -> None:
    data = {TICKET_KEY: known, "other": "kept"}
    await client.create(ConfigMap(metadata=ObjectMeta(name=CACHE_CONFIG_MAP, namespace=SPACE), data=data))
    await publish(client, SPACE, NEW)
    assert await _there(client) == {TICKET_KEY: NEW + "\n", "other": "kept"}


async def test_earlier_key_stays_after_the_cluster_secret_changed(client: Client) -> None:
    await publish(client, SPACE, OLD)
    await publish(client, SPACE, NEW)
    assert (await _there(client))[TICKET_KEY].split() == [NEW, OLD]


async def test_second_publication_writes_nothing(client: Client) -> None:
    await publish(client, SPACE, NEW)
    before = (await client.get(ConfigMap, CACHE_CONFIG_MAP, SPACE)).metadata.resource_version
    await publish(client, SPACE, NEW)
    assert (await client.get(ConfigMap, CACHE_CONFIG_MAP, SPACE)).metadata.resource_version == before
