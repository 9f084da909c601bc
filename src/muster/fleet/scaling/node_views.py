"""Converts Node objects, pods and Placements to the form that scaling uses; reads our records on nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from muster.api.names import MIRROR, STAYS
from muster.api.placement import Placement
from muster.fleet.nodes.node import read
from muster.fleet.scaling.config import EXTERNAL
from muster.fleet.scaling.snapshot import Group, PoolSpec, ScalingNode
from muster.kube.objects.node import Node
from muster.kube.objects.pod import Pod
from muster.kube.objects.taints import HARD_EFFECTS

ANNOTATION_RECORD = "muster.dev/scaling"
"""Annotation on a node that we cordoned: a `Record`."""
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"


class Record(msgspec.Struct, frozen=True):
    """The record of a cordon: its writer, time and reason. `state`: Draining or Deleting. It outlives the instance."""

    state: str
    since: str
    why: str
    pool: str
    instance: str
    by: str = "muster-scaling"


def record_of(node: Node) -> Record | None:
    """Read our record; None if it is missing or invalid."""
    try:
        return msgspec.json.decode(node.metadata.annotations.get(ANNOTATION_RECORD, ""), type=Record)
    except msgspec.DecodeError:
        return None


def pod_keeps(pod: Pod) -> Iterable[str]:
    """Yield the node that the pod keeps; none if the pod has ended, or is a DaemonSet's or static pod."""
    if not pod.spec.node_name or pod.finished or MIRROR in pod.metadata.annotations:
        return ()
    if any(owner.controller and owner.kind == "DaemonSet" for owner in pod.metadata.owner_references):
        return ()
    return (pod.spec.node_name,)


def placement_keeps(placement: Placement) -> Iterable[str]:
    """Yield the nodes that the Placement's slots keep."""
    if placement.status.phase == "Released":
        return ()
    return {slot.node for slot in placement.spec.slots}


def node_views(
    nodes: Iterable[Node],
    pools: Iterable[PoolSpec],
    groups: Mapping[str, Group],
    occupied: Callable[[str], str],
) -> tuple[ScalingNode, ...]:
    """Return the nodes of pools, by our record, their instance, or the labels of an external pool."""
    pools = list(pools)
    owners = {each.id: name for name, group in groups.items() for each in group.instances}
    owners |= {each.node_name: name for name, group in groups.items() for each in group.instances if each.node_name}
    specs = {pool.name: pool for pool in pools}
    views = []
    for node in nodes:
        record = record_of(node)
        instance, name = instance_of(node, owners)
        if not name and record is not None and record.pool in specs:
            instance, name = record.instance, record.pool
        if not name:
            instance, name = node.name, external_pool(node, pools)
        if name:
            views.append(_view(node, specs[name], instance, record, occupied))
    return tuple(views)


def external_pool(node: Node, pools: Iterable[PoolSpec]) -> str:
    """Return the external pool whose labels the node has; "" without one."""
    for pool in pools:
        if pool.provider == EXTERNAL and pool.template.labels.items() <= node.metadata.labels.items():
            return pool.name
    return ""


def instance_of(node: Node, owners: Mapping[str, str]) -> tuple[str, str]:
    """Return (instance ID, pool), found by the node's name, its providerID, or the providerID's last path segment."""
    if node.name in owners:
        return node.name, owners[node.name]
    rest = node.spec.provider_id
    while rest:
        if rest in owners:
            return rest, owners[rest]
        _, slash, rest = rest.partition("/")
        if not slash:
            break
    return "", ""


def _view(
    node: Node, pool: PoolSpec, instance: str, record: Record | None, occupied: Callable[[str], str]
) -> ScalingNode:
    ours = record is not None and node.spec.unschedulable
    return read(
        ScalingNode,
        node,
        pool=pool.name,
        instance=instance,
        occupied=occupied(node.name),
        keeps_away=_keeps_away(node, pool, ours=ours),
        draining=ours,
        deleting=record is not None and record.state == "Deleting",
        abandoned=record is not None and not ours,
        may_go=node.metadata.annotations.get(STAYS) != "true",
    )


def _keeps_away(node: Node, pool: PoolSpec, *, ours: bool) -> str:
    if node.spec.unschedulable and not ours:
        return "cordoned"
    usual = {(taint.key, taint.effect) for taint in pool.template.taints}
    expected = {_UNSCHEDULABLE, *pool.template.assigned}
    for taint in node.spec.taints:
        if taint.effect in HARD_EFFECTS and (taint.key, taint.effect) not in usual and taint.key not in expected:
            return f"taint {taint.key}:{taint.effect}"
    return ""
