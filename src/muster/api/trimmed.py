"""The form in which our processes keep the nodes and pods of a cluster: the fields that some part of Muster reads."""

from __future__ import annotations

from types import MappingProxyType

from msgspec.structs import replace

from muster.api.names import GROUP, MIRROR, STAYS
from muster.kube.informers import Form, Forms
from muster.kube.objects.meta import ObjectMeta
from muster.kube.objects.node import Node, NodeStatus
from muster.kube.objects.pod import Pod, PodSpec, PodStatus


def trimmed_node(node: Node) -> Node:
    """Return the node without most addresses, and without annotations of others.

    The capacity keeps only what is not allocatable: devices that are broken at the moment.
    """
    status, meta = node.status, node.metadata
    capacity = status.capacity
    if status.allocatable:
        capacity = {
            name: amount for name, amount in capacity.items() if "/" in name and status.allocatable.get(name) != amount
        }
    ours = {key: value for key, value in meta.annotations.items() if key == STAYS or key.startswith(f"{GROUP}/")}
    return replace(
        node,
        metadata=replace(meta, annotations=ours),
        status=NodeStatus(
            capacity=capacity,
            allocatable=status.allocatable,
            conditions=status.conditions,
            addresses=tuple(each for each in status.addresses if each.type == "InternalIP"),
            node_info=status.node_info,
        ),
    )


def trimmed_pod(pod: Pod) -> Pod:
    """Return the pod with only its node and what decides whether it keeps it."""
    meta = pod.metadata
    kept = ObjectMeta(
        name=meta.name,
        namespace=meta.namespace,
        uid=meta.uid,
        resource_version=meta.resource_version,
        annotations={MIRROR: ""} if MIRROR in meta.annotations else {},
        owner_references=tuple(each for each in meta.owner_references if each.controller),
    )
    return Pod(metadata=kept, spec=PodSpec(node_name=pod.spec.node_name), status=PodStatus(phase=pod.status.phase))


FORMS: Forms = MappingProxyType({Node: Form(transform=trimmed_node), Pod: Form(stored=trimmed_pod)})
"""Controllers keep what they need of a pod themselves, so that the store holds little of it."""
