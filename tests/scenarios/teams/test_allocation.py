"""The controller of teams on both API servers: the ConfigMap becomes labels and taints, and stays so."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from muster.api.names import TAINT_QUARANTINE, TEAMS_CONFIG_MAP
from muster.api.trimmed import FORMS
from muster.kube.client import JSON_PATCH, Client
from muster.kube.informers import Informers
from muster.kube.objects.core import ConfigMap, Event
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.teams.plan import Why
from tests.scenarios.teams.conftest import Audited
from tests.support.anyserver import BY_TEAMS
from tests.support.teamclusters import LEASE, SELECTOR, TeamCluster
from tests.support.waiting import until

QUARANTINE = {"key": TAINT_QUARANTINE, "value": "true", "effect": "NoSchedule"}


async def test_the_config_map_becomes_labels_and_taints_and_then_nothing_is_written(
    audited: tuple[Client, Audited], cluster: TeamCluster
) -> None:
    client, wire = audited
    await cluster.add_nodes(6)
    await cluster.configure(vision=3, speech="33.4%")
    cluster.manage(client, broken_after_s=30.0)  # a control plane that just started may doubt new nodes
    await cluster.until_owned(vision=3, speech=2)
    await until("each node was written once", lambda: wire.written() == 5)
    await cluster.configure(vision=1, speech=4)
    await cluster.until_owned(vision=1, speech=4)
    await until("so was each that moved", lambda: wire.written() == 7)
    before = len(wire.of_nodes())
    for name in await cluster.nodes():  # kubelets report; nothing changed
        await cluster.set_ready(name, True)
    await asyncio.sleep(1)
    assert len(wire.of_nodes()) == before, wire.of_nodes()[before:]


async def test_a_taint_removed_by_hand_is_put_back_and_others_stay(cluster: TeamCluster) -> None:
    (name,) = await cluster.add_nodes(1)
    await cluster.configure(vision=1)
    cluster.manage()
    await cluster.until_owned(vision=1)
    other = {"key": "example.com/other", "effect": "NoSchedule"}
    await cluster.client.patch(Node, name, {"spec": {"taints": [other]}})
    await cluster.until_owned(vision=1)
    taints = (await cluster.nodes())[name].spec.taints
    assert {"example.com/other", cluster.key} <= {taint.key for taint in taints}
    await cluster.client.patch(Node, name, {"metadata": {"labels": {cluster.key: None}}})
    await cluster.until_owned(vision=1)

    async def reported() -> bool:
        events = (await cluster.client.list(Event, field_selector=f"involvedObject.name={name}")).items
        return any(event.reason == "TeamRestored" for event in events)

    await until("an Event says so", reported)


@pytest.mark.parametrize("how", ["not ready", "quarantined"])
@BY_TEAMS
async def test_a_broken_node_is_replaced(cluster: TeamCluster, how: str) -> None:
    names = await cluster.add_nodes(4)
    await cluster.configure(vision=2)
    cluster.manage()
    await cluster.until_owned(vision=2)
    if how == "not ready":
        await cluster.set_ready(names[0], False)
    else:
        taint = {"op": "add", "path": "/spec/taints/-", "value": QUARANTINE}
        await cluster.client.patch(Node, names[0], [taint], content_type=JSON_PATCH)
    mine = f"{cluster.key}=vision"

    async def replaced() -> bool:
        return {node.name for node in (await cluster.client.list(Node, label_selector=mine)).items} == {
            names[1],
            names[2],
        }

    await until("another node took its place", replaced)
    await cluster.until_owned(vision=2)
    if how == "quarantined":
        taints = (await cluster.client.get(Node, names[0])).spec.taints
        assert [taint.key for taint in taints] == [TAINT_QUARANTINE]


@BY_TEAMS
async def test_a_node_changes_hands_only_when_its_gang_has_ended(cluster: TeamCluster) -> None:
    names = await cluster.add_nodes(2)
    await cluster.configure(vision=2)
    informers = Informers(cluster.client, FORMS)
    manager, pods = cluster.manage(informers=informers), informers.of(Pod)
    await cluster.until_owned(vision=2)
    following = asyncio.create_task(pods.run())
    spec: dict[str, Any] = {
        "schedulerName": "muster",
        "nodeName": names[0],
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "c", "image": "none"}],
    }
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gang-0-0", "labels": {"muster.dev/gang": "g"}}}
    await cluster.client.create({**pod, "spec": spec}, namespace=cluster.namespace)
    await until("the manager knows the pod", lambda: pods.get(f"{cluster.namespace}/gang-0-0"))
    following.cancel()
    await cluster.configure(speech=2)

    def waits() -> bool:
        return any(each.team == "speech" and (each.owned, each.pending) == (1, 1) for each in manager.plan.standings)

    await until("one node moved, the other waits", waits)
    assert (await cluster.nodes())[names[0]].metadata.labels[cluster.key] == "vision"
    await cluster.client.delete(Pod, "gang-0-0", namespace=cluster.namespace, grace_s=0)
    await cluster.until_owned(speech=2)


async def test_without_a_config_map_nothing_happens_and_without_it_again_nodes_keep_their_owners(
    cluster: TeamCluster,
) -> None:
    await cluster.add_nodes(2)
    manager = cluster.manage()
    await cluster.configure(vision=1)
    await cluster.until_owned(vision=1)
    await cluster.client.delete(ConfigMap, TEAMS_CONFIG_MAP, namespace=cluster.namespace)
    await until("it is said", lambda: [each.why for each in manager.plan.cautions] == [Why.DELETED])
    await cluster.configure_text("allocations: [nonsense]")
    await until("it is said", lambda: [each.why for each in manager.plan.cautions] == [Why.INVALID])
    assert "line 1: an allocation is not a mapping" in manager.plan.cautions[0].message
    await cluster.configure_text("")
    await until("it is said", lambda: [each.why for each in manager.plan.cautions] == [Why.NO_ALLOCATIONS])
    assert await cluster.owners() == {"vision": 1}
    await cluster.configure(vision=2)
    await cluster.until_owned(vision=2)

    async def reported() -> set[str]:
        events = (await cluster.client.list(Event, cluster.namespace)).items
        found = {event.reason for event in events if event.involved_object.name == TEAMS_CONFIG_MAP}
        return found if found >= {"ConfigDeleted", "ConfigInvalid", "NoAllocations"} else set()

    await until("Events say so", reported)


@BY_TEAMS
async def test_another_key_moves_no_node(cluster: TeamCluster) -> None:
    await cluster.add_nodes(3)
    await cluster.configure(vision=1, speech=1)
    cluster.manage()
    await cluster.until_owned(vision=1, speech=1)
    before = {name: node.metadata.labels.get(cluster.key) for name, node in (await cluster.nodes()).items()}
    old, cluster.key = cluster.key, f"example.com/{cluster.pool}"
    await cluster.configure(vision=1, speech=1)
    await cluster.until_owned(vision=1, speech=1)
    nodes = await cluster.nodes()
    assert {name: node.metadata.labels.get(cluster.key) for name, node in nodes.items()} == before
    assert not [node for node in nodes.values() if old in node.metadata.labels]
    assert not [taint for node in nodes.values() for taint in node.spec.taints if taint.key == old]


async def test_two_managers_at_once_do_not_quarrel(audited: tuple[Client, Audited], cluster: TeamCluster) -> None:
    """As after a lease was lost unnoticed: each node is written once by one of them."""
    client, wire = audited
    await cluster.add_nodes(8)
    await cluster.configure(vision=4, speech=4)
    cluster.manage(client)
    cluster.manage(client)
    await cluster.until_owned(vision=4, speech=4)
    await cluster.configure(vision=2, speech=6)
    await cluster.until_owned(vision=2, speech=6)
    await asyncio.sleep(0.5)
    assert wire.written() <= 10, "a node was written twice"


async def test_the_next_leader_carries_on(audited: tuple[Client, Audited], cluster: TeamCluster) -> None:
    client, wire = audited
    await cluster.add_nodes(4)
    await cluster.configure(vision=2)
    first = cluster.manage(lease=LEASE)
    await cluster.until_owned(vision=2)
    second = cluster.manage(client, lease=LEASE)
    await asyncio.sleep(0.5)
    assert first.plan.standings
    assert not second.plan.standings, "the second one acts without the lease"
    await cluster.end_first()
    await until("the second one leads", lambda: second.plan.standings)
    assert wire.of_nodes() == [], "a new leader writes what is as it should be"
    await cluster.configure(vision=3)
    await cluster.until_owned(vision=3)


@BY_TEAMS
async def test_nodes_of_other_pools_are_left_alone(cluster: TeamCluster) -> None:
    await cluster.add_nodes(1)
    other = f"{cluster.pool}-other"
    await cluster.client.create(Node(metadata=ObjectMeta(name=other, labels={SELECTOR: "another"})))
    try:
        await cluster.configure(vision=5)
        cluster.manage()
        await cluster.until_owned(vision=1)
        assert cluster.key not in (await cluster.client.get(Node, other)).metadata.labels
    finally:
        await cluster.client.delete(Node, other)
