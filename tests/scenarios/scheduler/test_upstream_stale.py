"""What a scheduler does that has not yet heard of a change; the test carries the number of the upstream issue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from muster.kube.client import Client
from muster.kube.connection.config import load_config
from muster.kube.objects.workloads import CoschedulingPodGroup
from tests.scenarios.scheduler.conftest import Cluster
from tests.scenarios.scheduler.test_adapters import COSCHEDULING, add, is_bound, make
from tests.support import workloads
from tests.support.anyserver import BY_BINDS
from tests.support.waiting import until


class LateClient(Client):
    """Hears of PodGroups only while it may."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.may_hear = asyncio.Event()
        self.may_hear.set()
        self.minimum = 0

    async def watch_batches(self, kind: type[Any], *arguments: Any, **options: Any) -> Any:
        async for batch in super().watch_batches(kind, *arguments, **options):
            if kind is CoschedulingPodGroup:
                await self.may_hear.wait()
            yield batch
            if kind is CoschedulingPodGroup:
                self.minimum = max([self.minimum, *(getattr(each.object.spec, "min_member", 0) for each in batch)])


@pytest.fixture
async def late(cluster: Cluster) -> AsyncIterator[LateClient]:
    await workloads.install(cluster.client, COSCHEDULING)
    async with LateClient(load_config(str(cluster.kubeconfig))) as client:
        _, task = cluster.schedule(client)
        yield client
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await workloads.uninstall(cluster.client, COSCHEDULING)


@pytest.mark.parametrize("heard", [pytest.param(True, marks=BY_BINDS, id="heard"), pytest.param(False, id="not-heard")])
async def test_new_pods_of_a_pod_group_that_grew_are_bound_together_6010(
    cluster: Cluster, late: LateClient, heard: bool
) -> None:
    """Volcano: its old view of the PodGroup lets it bind some of the new pods. Ours: reads it again first."""
    await cluster.add_nodes(3)
    await make(cluster, COSCHEDULING, "pg", {"minMember": 2})
    for name in ("p0", "p1"):
        await add(cluster, name, {workloads.POD_GROUP: "pg"})
    await until("bound", lambda: is_bound(cluster, "pod-group.pg", "p0", "p1"))
    if not heard:
        late.may_hear.clear()
    more = {"spec": {"minMember": 4}}
    await cluster.client.patch(CoschedulingPodGroup, "pg", more, namespace=cluster.namespace)
    if heard:
        await until("it is heard", lambda: late.minimum == 4)
    for name in ("p2", "p3"):
        await add(cluster, name, {workloads.POD_GROUP: "pg"})

    async def had_their_turn() -> bool:
        waits = any(event.reason == "FailedScheduling" for event in await cluster.events())
        return waits or len(await cluster.bound("")) > 2

    await until("the new ones had their turn", had_their_turn)
    assert (await cluster.bound("")).keys() == {"p0", "p1"}
    late.may_hear.set()
    await cluster.add_nodes(1)
    await until("the new ones are bound", lambda: is_bound(cluster, "pod-group.pg", "p0", "p1", "p2", "p3"))
