"""What the webhook knows of namespaces and of the allocation, followed on both API servers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest

from muster.admission.homes import Homes
from muster.admission.mutate import Home
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.objects.core import ConfigMap, Namespace
from muster.kube.objects.meta import ObjectMeta
from tests.support.waiting import until

KEY = "muster.dev/team"
CONFIG = "muster-teams"
GOOD = """\
allocations:
- {nodeSelector: {gpu: h100}, team: red, amount: 2}
- {nodeSelector: {gpu: h100}, team: blue, amount: 0}
"""


class Followed:
    def __init__(self, client: Client, homes: Homes, system: str) -> None:
        self.client, self.homes, self.system = client, homes, system

    async def namespace(self, **labels: str) -> str:
        name = f"home-{uuid.uuid4().hex[:8]}"
        await self.client.create(Namespace(metadata=ObjectMeta(name=name, labels=labels)))
        return name

    async def label(self, name: str, **labels: str | None) -> None:
        await self.client.patch(Namespace, name, {"metadata": {"labels": labels}})

    async def knows(self, name: str, home: Home) -> None:
        await until(f"{name} is {home}", lambda: self.homes.get(name) == home)

    async def allocation(self, data: dict[str, str]) -> None:
        await self.client.patch(ConfigMap, CONFIG, {"data": data}, namespace=self.system)


@pytest.fixture
async def followed(cluster_config: ClusterConfig) -> AsyncIterator[Followed]:
    async with Client(cluster_config) as client:
        system = f"system-{uuid.uuid4().hex[:8]}"
        await client.create(Namespace(metadata=ObjectMeta(name=system)))
        homes = Homes(client, system, KEY)
        assert homes.not_ready() is not None
        running = asyncio.create_task(homes.run())
        try:
            await until("both are known", lambda: homes.not_ready() is None)
            yield Followed(client, homes, system)
        finally:
            running.cancel()
            await asyncio.wait([running])
            await client.delete(Namespace, system)


async def test_namespaces_are_followed(followed: Followed) -> None:
    name = await followed.namespace(**{KEY: "red"})
    await followed.knows(name, Home(team="red"))
    await followed.label(name, **{KEY: "blue", "muster.dev/scheduler": "muster"})
    await followed.knows(name, Home(team="blue", ours=True))
    await followed.label(name, **{KEY: None, "muster.dev/scheduler": "theirs"})
    await followed.knows(name, Home())


async def test_a_namespace_can_be_asked_about(followed: Followed) -> None:
    name = await followed.namespace(**{KEY: "red"})
    assert await followed.homes.ask(name) == Home(team="red")
    assert await followed.homes.ask("nowhere") is None
    assert followed.homes.get("nowhere") is None


async def test_teams_with_nodes_follow_the_last_valid_allocation(
    followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    homes = followed.homes
    assert not homes.without_nodes("green"), "it is not known yet"
    meta = ObjectMeta(name=CONFIG, namespace=followed.system)
    await followed.client.create(ConfigMap(metadata=meta, data={"teams.yaml": GOOD}))
    await until("green has nothing", lambda: homes.without_nodes("green"))
    assert homes.without_nodes("blue"), "0 nodes are none"
    assert not homes.without_nodes("red")

    await followed.allocation({"teams.yaml": "allocations: nonsense"})
    await until("it has been read", lambda: f"ConfigMap {CONFIG}" in caplog.text)
    assert homes.without_nodes("green")
    assert not homes.without_nodes("red")
    await followed.allocation({"teams.yaml": GOOD.replace("blue, amount: 0", "green, amount: 1")})
    await until("green has a node", lambda: not homes.without_nodes("green"))
