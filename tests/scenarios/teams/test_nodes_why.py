"""`muster nodes why` says each named state of a node, with who, since when and why, on both API servers."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

from muster.api.names import CONTROLLER_LEASE
from muster.fleet.joins.config import CONFIG_MAP
from muster.fleet.joins.record import ANNOTATION_JOIN_PACE, ANNOTATION_JOIN_RECORD, JoinRecord, PaceRecord
from muster.fleet.scaling.node_views import ANNOTATION_RECORD, Record
from muster.fleet.scaling.status import PoolStatus, ScalingStatus, write_status
from muster.kube.objects.coordination import Lease, LeaseSpec
from muster.kube.objects.core import ConfigMap
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node, Taint
from muster.kube.objects.struct import encode, to_dict
from tests.scenarios.teams.conftest import Typed
from tests.support.anyserver import BY_COMMAND
from tests.support.apiserver import ApiServer
from tests.support.teamclusters import TeamCluster

SINCE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PACE = PaceRecord(2, 5.0, "Overloaded", "the API server refused 9 of 100 requests", 3, 0)


async def pod_on(cluster: TeamCluster, name: str, node: str, **labels: str) -> None:
    spec: dict[str, Any] = {"schedulerName": "muster", "nodeName": node, "tolerations": [{"operator": "Exists"}]}
    spec["containers"] = [{"name": "c", "image": "none"}]
    labels = {f"muster.dev/{key}": value for key, value in labels.items()}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}
    await cluster.client.create(pod, namespace=cluster.namespace)


async def taint(cluster: TeamCluster, node: str, *taints: Taint, **annotations: str) -> None:
    patch = {"spec": {"taints": [to_dict(each) for each in taints]}, "metadata": {"annotations": annotations}}
    await cluster.client.patch(Node, node, patch)


def joining() -> Taint:
    return Taint(key="muster.dev/joining", value="pending", effect="NoSchedule")


@BY_COMMAND
async def test_pods_on_the_node_are_listed(cluster: TeamCluster, typed: Typed) -> None:
    (name,) = await cluster.add_nodes(1)
    await cluster.configure(vision=1)
    cluster.manage()
    await cluster.until_owned(vision=1)
    assert (await typed.json("nodes", "why", name))["states"] == ["Idle"]
    await pod_on(cluster, "ours", name, gang="train")
    await pod_on(cluster, "theirs", name, gang="sweep", borrowed="true")
    await pod_on(cluster, "air", name, **{"balloon": "true", "balloon-pool": "h100"})
    found = await typed.json("nodes", "why", name)
    assert found["states"] == ["InUse", "Lent", "Balloon"]
    assert found["balloons"] == [{"pod": f"{cluster.namespace}/air", "pool": "h100"}]
    said = await typed.ok("nodes", "why", name)
    assert f"in use by {cluster.namespace}/train" in said
    assert f"lent to {cluster.namespace}/sweep: they leave when a gang of the owner needs it" in said
    assert f"kept by balloon {cluster.namespace}/air: it leaves at once for work" in said


async def test_a_node_that_waits_to_join_says_when_and_why_not_yet(cluster: TeamCluster, typed: Typed) -> None:
    first, second, third, unready = await cluster.add_nodes(4)
    meta = ObjectMeta(
        name=CONFIG_MAP, namespace=cluster.namespace, annotations={ANNOTATION_JOIN_PACE: encode(PACE).decode()}
    )
    assert "pace: unknown" not in await typed.ok("nodes", "why", first)
    record = {ANNOTATION_JOIN_RECORD: encode(JoinRecord("2026-01-02T03:04:05Z")).decode()}
    for name in (first, second, third, unready):
        await taint(cluster, name, joining(), **record)
    await cluster.set_ready(unready, False)
    assert "pace: unknown; are joins switched on" in await typed.ok("nodes", "why", first)
    await cluster.client.create(ConfigMap(metadata=meta))
    found = await typed.json("nodes", "why", third)
    assert found["states"] == ["Joining", "Idle"]
    reported = found["joining"]
    assert (reported["ahead"], reported["opensInSeconds"], reported["pace"]["comingMax"]) == (2, 10.0, 0)
    said = (await typed.ok("nodes", "why", third)).splitlines()
    held = "  joining: held back since 2026-01-02T03:04:05Z: "
    assert f"{held}2 nodes that came before are opened first; open to pods in about 10 s" in said
    assert "  pace: 2 nodes in 5 s, 3 wait; the API server refused 9 of 100 requests" in said
    assert "  autoscalers may have 0 nodes on the way at once" in said
    assert "only nodes that are Ready are opened to pods" in await typed.ok("nodes", "why", unready)
    spec = LeaseSpec(holder_identity="gone", renew_time=datetime.now(UTC) - timedelta(minutes=5))
    await cluster.client.create(
        Lease(metadata=ObjectMeta(name=CONTROLLER_LEASE, namespace=cluster.namespace), spec=spec)
    )
    said_at_once = await typed.ok("nodes", "why", first)
    assert "it is next; nodes are not opened now: no Muster controller has renewed its lease since" in said_at_once
    assert "in about" not in said_at_once
    opened = encode(JoinRecord("2026-01-02T03:04:05Z", "2026-01-02T03:05:00Z", "2 nodes in 5 s: room")).decode()
    await taint(cluster, first, **{ANNOTATION_JOIN_RECORD: opened})
    said_later = await typed.ok("nodes", "why", first)
    assert "joined: waited since 2026-01-02T03:04:05Z, opened to pods 2026-01-02T03:05:00Z" in said_later
    assert "pace then: 2 nodes in 5 s: room" in said_later


async def test_author_of_the_cordon_is_named(cluster: TeamCluster, typed: Typed, api_server: ApiServer) -> None:
    ours, theirs = await cluster.add_nodes(2)
    record = Record("Draining", "2026-01-02T03:04:05Z", "idle for 600 s", "h100", "i-1")
    annotations = {ANNOTATION_RECORD: json.dumps(to_dict(record))}
    await cluster.client.patch(Node, ours, {"spec": {"unschedulable": True}, "metadata": {"annotations": annotations}})
    await cluster.client.patch(Node, theirs, {"spec": {"unschedulable": True}}, field_manager="ops")
    assert "  scaling: Draining in pool h100" in (await typed.ok("nodes", "why", ours)).splitlines()
    assert "cordoned since 2026-01-02T03:04:05Z" in await typed.ok("nodes", "why", ours)
    assert "by muster-scaling: idle for 600 s" in await typed.ok("nodes", "why", ours)
    found = await typed.json("nodes", "why", theirs)
    assert found["states"] == ["Cordoned", "Idle"]
    said = await typed.ok("nodes", "why", theirs)
    if api_server.kind == "embedded":  # which keeps no managedFields
        assert "cordoned, the API server does not say by whom" in said
    else:
        assert found["cordon"]["by"] == "ops"
        assert found["cordon"]["since"]
        assert "by ops" in said


@BY_COMMAND
async def test_obstacles_for_pods_are_listed(cluster: TeamCluster, typed: Typed) -> None:
    quarantined, silent, launched = await cluster.add_nodes(3)
    quarantine = Taint(key="muster.dev/quarantine", value="true", effect="NoSchedule", time_added=SINCE)
    other = Taint(key="example.com/spot", effect="NoExecute")
    await taint(cluster, quarantined, quarantine, other)
    found = await typed.json("nodes", "why", quarantined)
    assert found["states"] == ["Quarantined", "Idle"]
    assert not found["healthy"]
    assert found["taints"] == ["example.com/spot:NoExecute"]
    said = await typed.ok("nodes", "why", quarantined)
    assert "in quarantine since 2026-01-02T03:04:05Z" in said
    assert "tainted: example.com/spot:NoExecute" in said
    await cluster.set_ready(silent, False)
    assert "NotReady" in (await typed.json("nodes", "why", silent))["states"]
    assert "not ready: Test" in await typed.ok("nodes", "why", silent)
    await cluster.client.patch(Node, launched, {"spec": {"providerID": "aws:///zone-a/i-77"}})
    pool = PoolStatus("h100", "aws", 1, 0, 9, {"Joining": 1}, (), {"i-77": "Joining"})
    await write_status(cluster.client, cluster.namespace, ScalingStatus((pool,)))
    assert (await typed.json("nodes", "why", launched))["scaling"] == {"pool": "h100", "state": "Joining"}
    assert "scaling: Joining in pool h100" in await typed.ok("nodes", "why", launched)


@BY_COMMAND
async def test_a_node_that_goes_says_so(cluster: TeamCluster, typed: Typed) -> None:
    (name,) = await cluster.add_nodes(1)
    await cluster.client.patch(Node, name, {"metadata": {"finalizers": ["example.com/last-look"]}})
    await cluster.client.delete(Node, name)
    try:
        assert (await typed.json("nodes", "why", name))["states"][0] == "Deleting"
        assert "being deleted since" in await typed.ok("nodes", "why", name)
    finally:
        await cluster.client.patch(Node, name, {"metadata": {"finalizers": None}})


@BY_COMMAND
async def test_a_name_that_was_mistyped(cluster: TeamCluster, typed: Typed) -> None:
    (name,) = await cluster.add_nodes(1)
    _, _, err = await typed.fails("nodes", "why", name[:-1])
    assert f"did you mean '{name}'?" in err
