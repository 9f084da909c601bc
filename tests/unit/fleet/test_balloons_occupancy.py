"""The use of each node, kept by events, equals a full count at all times."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from muster.api.placement import PlacedSlot, Placement, PlacementSpec, PlacementStatus
from muster.fleet.balloons.cache import Occupancy
from muster.fleet.balloons.snapshot import Balloon
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.pod import Pod
from muster.kube.objects.struct import decode, encode

NODES = ("", "n0", "n1", "n2")


def pod(name: str, uid: str, node: str = "n0", *, balloon: bool = False, **fields: object) -> Pod:
    labels = {"muster.dev/balloon": "true", "muster.dev/balloon-pool": "h100"} if balloon else {}
    meta: dict[str, object] = {"name": name, "namespace": "ns", "uid": uid, "labels": labels}
    if fields.pop("terminating", False):
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    spec: dict[str, object] = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}], **fields}
    phase = spec.pop("phase", "Running")
    return decode(encode({"metadata": meta, "spec": {"nodeName": node, **spec}, "status": {"phase": phase}}), Pod)


def placement(name: str, phase: str, nodes: list[str]) -> Placement:
    slots = tuple(PlacedSlot(slot=number, node=node) for number, node in enumerate(nodes))
    return Placement(
        metadata=ObjectMeta(name=name, namespace="ns"),
        spec=PlacementSpec(gang=name, gang_uid=name, size=max(1, len(nodes)), slots=slots),
        status=PlacementStatus(phase=phase),  # type: ignore[arg-type]
    )


PODS = st.builds(
    pod,
    name=st.sampled_from(("a", "b", "c")),
    uid=st.sampled_from(("1", "2")),
    node=st.sampled_from(NODES),
    balloon=st.booleans(),
    terminating=st.booleans(),
    phase=st.sampled_from(("Pending", "Running", "Succeeded")),
)
GONE = st.sampled_from(("a", "b", "c"))
PLACEMENTS = st.builds(
    placement,
    name=st.sampled_from(("g", "h")),
    phase=st.sampled_from(("Open", "Bound", "Preempting", "Released")),
    nodes=st.lists(st.sampled_from(NODES[1:]), max_size=3),
)


@given(st.lists(PODS | GONE, max_size=30))
def test_incremental_usage_equals_a_full_count(events: list[Pod | str]) -> None:
    occupancy = Occupancy(lambda: 0.0)
    store: dict[str, Pod] = {}
    for event in events:
        name = event if isinstance(event, str) else event.name
        old, new = store.get(name), None if isinstance(event, str) else event
        if new is not None:
            # Two pods of one name never have one UID, and one pod is never a balloon at one time and work at another.
            kind = "b" if new.metadata.labels else "w"
            new = msgspec.structs.replace(
                new, metadata=msgspec.structs.replace(new.metadata, uid=f"{name}{new.uid}{kind}")
            )
        if old is not None and new is not None and old.uid != new.uid:
            occupancy.pod_changed(old, None)
            old = None
        occupancy.pod_changed(old, new)
        store.pop(name, None)
        if new is not None:
            store[name] = new
    fresh = Occupancy(lambda: 0.0)
    for each in store.values():
        fresh.pod_changed(None, each)
    assert occupancy.balloons == fresh.balloons
    for node in NODES:
        work = [p for p in store.values() if not p.metadata.labels and p.spec.node_name == node != ""]
        expected = 500 * sum(p.status.phase != "Succeeded" for p in work)
        assert occupancy.taken(node).get("cpu", 0) == fresh.taken(node).get("cpu", 0) == expected


@given(st.lists(PLACEMENTS | st.sampled_from(("g", "h")), max_size=20))
def test_promises_are_those_of_the_placements_that_are_there(events: list[Placement | str]) -> None:
    occupancy = Occupancy()
    store: dict[str, Placement] = {}
    for event in events:
        name = event if isinstance(event, str) else event.name
        old, new = store.pop(name, None), None if isinstance(event, str) else event
        if old is None and new is None:
            continue
        occupancy.placement_changed(old, new)
        if new is not None:
            store[name] = new
    promised = {slot.node for each in store.values() if each.status.phase != "Released" for slot in each.spec.slots}
    assert {node for node in NODES[1:] if occupancy.promised(node)} == promised


def test_only_what_matters_is_a_change() -> None:
    occupancy = Occupancy()
    first = pod("a", "1")
    assert occupancy.pod_changed(None, first)
    assert not occupancy.pod_changed(first, pod("a", "1", phase="Pending")), "it takes the same"
    assert occupancy.pod_changed(first, pod("a", "1", phase="Failed"))
    assert not occupancy.pod_changed(None, pod("b", "2", "")), "it is on no node"
    assert occupancy.pod_changed(None, pod("c", "3", "", balloon=True))
    assert occupancy.pod_changed(pod("c", "3", "", balloon=True), pod("c", "3", "n1", balloon=True))
    assert [balloon.node for balloon in occupancy.balloons.values()] == ["n1"]


def test_a_pod_takes_the_larger_of_its_containers_and_its_init_containers() -> None:
    occupancy = Occupancy()
    amount = {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "nvidia.com/gpu": 8}}
    sidecar = {"name": "s", "restartPolicy": "Always", "resources": {"requests": {"cpu": "1"}}}
    setup = {"name": "i", "resources": {"requests": {"cpu": "4", "memory": "1Gi"}}}
    occupancy.pod_changed(
        None,
        pod(
            "a",
            "1",
            containers=[{"name": "c", "resources": amount}],
            initContainers=[sidecar, setup],
            overhead={"cpu": "100m"},
        ),
    )
    taken = {"cpu": 5100, "memory": 1 << 30, "nvidia.com/gpu": 8, "pods": 1}
    assert occupancy.taken("n0") == taken
    occupancy.pod_changed(None, pod("b", "2", resources={"requests": {"memory": "1Gi"}}))
    assert occupancy.taken("n0") == {**taken, "cpu": 5600, "memory": 2 << 30, "pods": 2}, "asked for as a whole pod"


def test_balloons_say_where_they_are_and_whether_they_go_first() -> None:
    occupancy = Occupancy(lambda: 5.0)
    marked = pod("a", "1", balloon=True)
    marked.metadata.annotations["controller.kubernetes.io/pod-deletion-cost"] = "-1000"
    occupancy.pod_changed(None, marked)
    assert list(occupancy.balloons.values()) == [Balloon("ns", "a", "1", "h100", "n0", 5.0, True)]
    assert occupancy.taken("n0") == {}
    occupancy.pod_changed(marked, pod("a", "1", balloon=True, terminating=True))
    assert occupancy.balloons == {}
