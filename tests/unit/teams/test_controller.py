"""The shell on an API server without sockets, where requests fail on demand, in virtual time."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from muster.api.crd import KINDS, definition
from muster.api.handover import Handover
from muster.api.names import TEAMS_CONFIG_MAP
from muster.api.placement import PlacedSlot, Placement, PlacementSpec
from muster.cli.teams.team_key import read_team_key
from muster.kube.client import Client
from muster.kube.connection.config import ClusterConfig
from muster.kube.metrics import kube_metrics
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.sim.virtual.network import Calm, InProcessTransport, Trace
from muster.teams import allocation, executor
from muster.teams.cache import Holdings
from muster.teams.config import parse
from muster.teams.controller import TeamsController
from muster.teams.decide import decide
from muster.teams.metrics import teams_metrics
from tests.support.apicore import Cluster
from tests.support.teamclusters import SELECTOR, TeamCluster
from tests.support.virtualtime import in_virtual_time
from tests.support.waiting import until


class Moody(Calm):
    """Some writes are refused, others act without an answer."""

    refusals = 0

    def denied(self, method: str, path: str, body: bytes) -> int:
        if method == "PATCH" and path.startswith("/api/v1/nodes/") and not path.endswith("/status") and self.refusals:
            self.refusals -= 1
            return 403
        return 0


class VirtualTeams(TeamCluster):
    """Managers whose clock is the loop's."""

    def manage(self, client: Client | None = None, *, lease: str = "", **options: Any) -> TeamsController:
        clock = asyncio.get_running_loop().time
        return super().manage(client, lease=lease, clock=clock, rng=random.Random(2), **options)


@pytest.fixture
def wire() -> tuple[Moody, Trace]:
    return Moody(random.Random(1)), Trace()


@pytest.fixture
def cluster(wire: tuple[Moody, Trace]) -> TeamCluster:
    core = Cluster()
    for kind in KINDS:
        core.ok("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition(kind))
    core.ok("POST", "/api/v1/namespaces", {"metadata": {"name": "muster-system"}})
    transport = InProcessTransport(core.core, "teams", *wire)
    metrics, rng = kube_metrics(CollectorRegistry()), random.Random(3)
    client = Client(ClusterConfig(server="http://none"), transport=transport, metrics=metrics, rng=rng)
    return VirtualTeams(client, "muster-system")


@in_virtual_time
async def test_nodes_become_what_the_config_map_says(cluster: TeamCluster) -> None:
    names = await cluster.add_nodes(5)
    manager = cluster.manage()
    await cluster.configure(vision=2, speech="40%")
    await cluster.until_owned(vision=2, speech=2)
    await until("it knows", lambda: [each.owned for each in manager.plan.standings] == [2, 2, 1])
    await cluster.client.patch(Node, names[0], {"spec": {"taints": None}})
    await cluster.until_owned(vision=2, speech=2)


@in_virtual_time
async def test_a_write_that_is_refused_is_tried_again(
    cluster: TeamCluster, wire: tuple[Moody, Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "RETRY_S", 0.05)
    wire[0].refusals = 3
    await cluster.add_nodes(2)
    cluster.manage()
    await cluster.configure(vision=2)
    await cluster.until_owned(vision=2)
    assert wire[0].refusals == 0


@in_virtual_time
async def test_nodes_that_cannot_be_written_are_left_to_whom_they_belong(
    cluster: TeamCluster, wire: tuple[Moody, Trace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the right to write nodes nothing changes hands, and no gang may lose nodes over it."""
    monkeypatch.setattr(executor, "RETRY_S", 0.05)
    names = await cluster.add_nodes(2)
    handover = Handover()
    reported: list[frozenset[str]] = []
    handover.changed = lambda: reported.append(handover.nodes)
    wire[0].refusals = 1 << 30
    cluster.manage(handover=handover)
    await cluster.configure(vision=2)
    await until("nothing new may start there, and again it may", lambda: reported[-1:] == [frozenset()])
    assert reported[0] == set(names)
    wire[0].refusals = 0
    await cluster.until_owned(vision=2)
    await until("that is over", lambda: not handover.nodes)


@in_virtual_time
async def test_a_node_that_fails_is_replaced_though_nothing_else_happens(
    cluster: TeamCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocation, "IDLE_S", 3600.0)
    names = await cluster.add_nodes(2)
    cluster.manage(broken_after_s=0.1)
    await cluster.configure(vision=1)
    await cluster.until_owned(vision=1)
    await cluster.set_ready(names[0], False)

    async def replaced() -> bool:
        return cluster.key in (await cluster.client.get(Node, names[1])).metadata.labels

    await until("the other one took its place", replaced)


@in_virtual_time
async def test_keys_that_come_after_a_bad_config_map_are_read_by(cluster: TeamCluster) -> None:
    await cluster.add_nodes(1)
    manager = cluster.manage()
    await cluster.configure_text("- no")
    await until("it is said", lambda: manager.plan.cautions)
    await cluster.configure(vision=1)
    await cluster.until_owned(vision=1)


def gang_on(node: str) -> dict[str, Any]:
    spec: dict[str, Any] = {"schedulerName": "muster", "nodeName": node, "containers": [{"name": "c", "image": "x"}]}
    spec["tolerations"] = [{"operator": "Exists"}]
    meta = {"name": f"on-{node}", "labels": {"muster.dev/gang": "g"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


@in_virtual_time
async def test_a_gang_that_comes_while_a_write_waits_for_its_turn_keeps_its_node(cluster: TeamCluster) -> None:
    _, second = await cluster.add_nodes(2)
    manager = cluster.manage(writes_per_s=1.0)
    await cluster.configure(vision=2)
    await cluster.until_owned(vision=1)
    await cluster.client.create(gang_on(second), namespace="muster-system")
    await until("one is waited for", lambda: [each.pending for each in manager.plan.standings] == [1, 0])
    assert await cluster.owners() == {"vision": 1}
    await cluster.client.delete(Pod, f"on-{second}", namespace="muster-system", grace_s=0)
    await cluster.until_owned(vision=2)


@in_virtual_time
async def test_older_config_map_is_not_executed(cluster: TeamCluster) -> None:
    await cluster.add_nodes(6)
    cluster.manage(writes_per_s=2.0)
    await cluster.configure(vision=6)
    await cluster.until_owned(vision=1)
    await cluster.configure(vision=2)
    await cluster.until_owned(vision=2)
    for _ in range(100):
        assert await cluster.owners() == {"vision": 2}
        await asyncio.sleep(0.1)


@in_virtual_time
async def test_another_node_of_the_same_name_is_not_written_for_the_old_one(cluster: TeamCluster) -> None:
    (name,) = await cluster.add_nodes(1)
    holdings = Holdings(parse(f"allocations: [{{nodeSelector: {{{SELECTOR}: {cluster.pool!r}}}, team: x, amount: 1}}]"))
    now = await cluster.client.get(Node, name)
    meta = msgspec.structs.replace(now.metadata, uid="of the old one", resource_version="1")
    holdings.set_node(msgspec.structs.replace(now, metadata=meta))
    done = asyncio.Event()
    writer = executor.NodeWriter(
        cluster.client,
        holdings,
        changed=done.set,
        written=lambda change, node: pytest.fail("written"),
        metrics=teams_metrics(CollectorRegistry()),
        rng=random.Random(1),
    )
    assert writer.submit(decide(holdings, 0).changes)
    task = asyncio.create_task(writer.run())
    await asyncio.wait_for(done.wait(), 30)
    task.cancel()
    assert (await cluster.client.get(Node, name)).metadata == now.metadata


@in_virtual_time
async def test_allocation_continues_when_a_gang_is_placed(cluster: TeamCluster) -> None:
    """Found by simulation: a Placement has no identity less its spec, and the first one ended the controller."""
    names = await cluster.add_nodes(2)
    cluster.manage()
    await cluster.configure(vision=1)
    await cluster.until_owned(vision=1)
    slot = PlacedSlot(slot=0, node=names[0])
    kept = Placement(
        metadata=ObjectMeta(name="train", namespace="muster-system"),
        spec=PlacementSpec(gang="train", gang_uid="uid", size=1, slots=(slot,)),
    )
    await cluster.client.create(kept)
    await asyncio.sleep(1.0)  # until the manager has heard of it
    await cluster.configure(speech=2)
    await cluster.until_owned(vision=1, speech=1)


@in_virtual_time
async def test_new_leader_without_an_allocation_uses_the_recorded_key(cluster: TeamCluster) -> None:
    """As the scheduler does: by another key it would miss the owners of nodes."""
    client, namespace = cluster.client, cluster.namespace
    assert await read_team_key(client, namespace) == "muster.dev/team"
    await cluster.add_nodes(1)
    cluster.manage()
    await cluster.configure(vision=1)
    await cluster.until_owned(vision=1)
    for text in ("", "allocations: []", "allocations: [nonsense]"):
        await cluster.configure_text(text)
        assert await read_team_key(client, namespace) == cluster.key
    await client.delete(ConfigMap, TEAMS_CONFIG_MAP, namespace=namespace)
    assert await read_team_key(client, namespace) == cluster.key
    await cluster.configure_text("teamKey: example.com/team\nallocations: [{nodeSelector: {a: b}, team: x, amount: 1}]")
    assert await read_team_key(client, namespace) == "example.com/team"
