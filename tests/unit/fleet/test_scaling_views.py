"""Which pool a node is in, who needs it, and what is read of our own record."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from muster.api.placement import Placement
from muster.api.trimmed import trimmed_node, trimmed_pod
from muster.fleet.providers.external import External
from muster.fleet.scaling.node_views import (
    ANNOTATION_RECORD,
    STAYS,
    node_views,
    placement_keeps,
    pod_keeps,
)
from muster.fleet.scaling.snapshot import Group, Instance, PoolSpec, ScalingNode, Template
from muster.kube.objects.node import Node, Taint
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import from_dict
from tests.unit.fleet.scalingworld import at_once

USUAL = Taint(key="muster.dev/pool", value="x", effect="NoSchedule")
AWS = PoolSpec("asg", "aws", "asg", 0, 4, 1.0, Template({}, (USUAL,), {}))
OTHERS = PoolSpec("others", "external", "others", 0, 4, 1.0, Template({"pool": "others"}, (), {}))
RECORD = '{"state":"Draining","since":"s","why":"w","pool":"asg","instance":"i-9"}'


def node(name: str, *, labels: dict[str, str] | None = None, note: dict[str, str] | None = None, **spec: Any) -> Node:
    body = {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": labels or {},
            "annotations": note or {},
            "creationTimestamp": datetime(2026, 1, 1, tzinfo=UTC).isoformat(),
        },
        "spec": spec,
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    return trimmed_node(from_dict(body, Node))


def view(made: Node, *instances: str) -> ScalingNode | None:
    groups = {"asg": Group(len(instances), tuple(Instance(each) for each in instances))}
    found = node_views([made], (AWS, OTHERS), groups, lambda name: "")
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize("provider_id", ["i-1", "aws:///us-east-1a/i-1", "azure:///scaleSets/x/i-1"])
def test_a_node_is_found_by_its_provider_id(provider_id: str) -> None:
    found = view(node("ip-10", providerID=provider_id), "i-0", "i-1")
    assert found is not None
    assert (found.pool, found.instance, found.uid, found.ready) == ("asg", "i-1", "uid-ip-10", True)


def test_by_its_own_name_where_the_provider_calls_it_so_and_not_by_a_part_of_an_id() -> None:
    assert view(node("i-1"), "i-1") is not None
    assert view(node("n", providerID="aws:///a/i-11"), "i-1") is None
    assert view(node("n", providerID="aws:///a/xi-1"), "i-1") is None


def test_nodes_of_external_pools_are_found_by_labels() -> None:
    found = view(node("n", labels={"pool": "others", "more": "1"}))
    assert found is not None
    assert (found.pool, found.instance) == ("others", "n")


def test_a_node_whose_instance_is_gone_is_known_by_our_record() -> None:
    found = view(node("n", note={ANNOTATION_RECORD: RECORD.replace("Draining", "Deleting")}, unschedulable=True))
    assert found is not None
    assert (found.pool, found.instance, found.deleting, found.draining) == ("asg", "i-9", True, True)


@pytest.mark.parametrize(
    ("spec", "note", "keeps_away", "draining", "abandoned"),
    [
        ({}, {}, "", False, False),
        ({"unschedulable": True}, {}, "cordoned", False, False),
        ({"unschedulable": True}, {ANNOTATION_RECORD: RECORD}, "", True, False),
        ({}, {ANNOTATION_RECORD: RECORD}, "", False, True),
        ({"unschedulable": True}, {ANNOTATION_RECORD: "{broken"}, "cordoned", False, False),
        ({"taints": [{"key": "muster.dev/pool", "value": "x", "effect": "NoSchedule"}]}, {}, "", False, False),
        ({"taints": [{"key": "muster.dev/team", "value": "t", "effect": "NoSchedule"}]}, {}, "", False, False),
        ({"taints": [{"key": "a", "effect": "PreferNoSchedule"}]}, {}, "", False, False),
        ({"taints": [{"key": "a", "effect": "NoExecute"}]}, {}, "taint a:NoExecute", False, False),
    ],
)
def test_reasons_that_keep_pods_away_are_listed(
    spec: dict[str, Any], note: dict[str, str], keeps_away: str, draining: bool, abandoned: bool
) -> None:
    found = view(node("i-1", note=note, **spec), "i-1")
    assert found is not None
    assert (found.keeps_away, found.draining, found.abandoned) == (keeps_away, draining, abandoned)


@pytest.mark.parametrize(
    ("taint", "quarantined"),
    [
        ({"key": "muster.dev/quarantine", "value": "true", "effect": "NoSchedule"}, True),
        ({"key": "muster.dev/quarantine", "effect": "NoExecute"}, True),
        ({"key": "muster.dev/quarantine", "value": "true", "effect": "PreferNoSchedule"}, False),
        ({"key": "muster.dev/joining", "value": "pending", "effect": "NoSchedule"}, False),
    ],
)
def test_quarantine_is_distinguished_from_other_taints(taint: dict[str, str], quarantined: bool) -> None:
    found = view(node("i-1", taints=[taint]), "i-1")
    assert found is not None
    assert found.quarantined is quarantined


def test_people_may_say_that_a_node_stays() -> None:
    found = view(node("i-1", note={STAYS: "true"}), "i-1")
    assert found is not None
    assert not found.may_go


def pod(phase: str = "Running", *, node_name: str = "n", owner: str = "", mirror: bool = False) -> Pod:
    owners = [{"apiVersion": "apps/v1", "kind": owner, "name": "o", "uid": "u", "controller": True}] if owner else []
    notes = {"kubernetes.io/config.mirror": "x"} if mirror else {}
    meta = {"name": "p", "namespace": "ns", "ownerReferences": owners, "annotations": notes}
    return trimmed_pod(from_dict({"metadata": meta, "spec": {"nodeName": node_name}, "status": {"phase": phase}}, Pod))


def test_which_pods_need_their_node() -> None:
    for needs in (pod(), pod("Pending"), pod(owner="ReplicaSet"), pod("Unknown")):
        assert list(pod_keeps(needs)) == ["n"]
    for does_not in (pod("Succeeded"), pod("Failed"), pod(node_name=""), pod(owner="DaemonSet"), pod(mirror=True)):
        assert list(pod_keeps(does_not)) == []


def test_slots_need_their_node_until_the_placement_is_released() -> None:
    spec = {"gang": "g", "gangUID": "u", "size": 2, "slots": [{"slot": 0, "node": "a"}, {"slot": 1, "node": "b"}]}
    for phase, expected in (
        ("Open", {"a", "b"}),
        ("Bound", {"a", "b"}),
        ("Preempting", {"a", "b"}),
        ("Released", set()),
    ):
        placement = from_dict({"metadata": {"name": "g"}, "spec": spec, "status": {"phase": phase}}, Placement)
        assert set(placement_keeps(placement)) == expected


def test_an_external_pool_waits_for_what_was_published_and_forgets_what_others_took_back() -> None:
    names = ["a"]
    external = External(lambda spec: names)

    def size() -> tuple[int, int]:
        group = at_once(external.look(OTHERS))
        assert not group.deletes
        return group.size, len(group.instances)

    assert size() == (1, 1)
    at_once(external.set_size(OTHERS, 3))
    assert size() == (3, 1)
    names[:] = ["a", "b", "c"]
    assert size() == (3, 3)
    names[:] = ["b"]
    assert size() == (1, 1), "nodes that an autoscaler gave back are not awaited"
