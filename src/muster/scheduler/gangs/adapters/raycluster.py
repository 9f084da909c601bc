"""Adapter for RayClusters of KubeRay: head and workers of all groups are one gang."""

from __future__ import annotations

from muster.kube.objects.pod import Pod
from muster.kube.objects.workloads import RayCluster
from muster.scheduler.gangs.adapters.membership import (
    Description,
    Membership,
    Role,
    Shape,
    WorkloadRef,
    controller_of,
    member_of,
)
from muster.scheduler.gangs.adapters.source import Source

NAME = "raycluster"
HEAD = "head"
_PREFIX = "ray.io/"


def member(pod: Pod) -> Membership | None:
    """Return the pod's membership, from the operator's labels. Only the head has a fixed position."""
    labels = pod.metadata.labels
    name, kind = labels.get(f"{_PREFIX}cluster"), labels.get(f"{_PREFIX}node-type")
    if not name or kind not in (HEAD, "worker"):
        return None
    owner = controller_of(pod, "RayCluster", "ray.io")
    ref = WorkloadRef(NAME, pod.namespace, name, owner.uid if owner is not None else "")
    if kind == HEAD:
        return member_of(ref, pod, role=HEAD, position=(0,))
    return member_of(ref, pod, role=_group(labels.get(f"{_PREFIX}group", "")))


def _group(name: str) -> str:
    return f"group/{name}"


def describe(cluster: RayCluster) -> Description:
    """Describe a RayCluster: the head and all replicas start together.

    With the autoscaler, minReplicas are enough to start, and the other workers join.
    """
    roles = {HEAD: Role.exactly(1)}
    for group in cluster.spec.worker_group_specs or ():
        hosts = group.num_of_hosts or 1
        size = 0 if group.suspend else (group.replicas or 0) * hosts
        minimum = size
        if cluster.spec.enable_in_tree_autoscaling:
            minimum = min(size, (group.min_replicas or 0) * hosts)
        roles[_group(group.group_name)] = Role(minimum, minimum, size)
    return Description(Shape(roles), "Suspended" if cluster.spec.suspend else "")


RAYCLUSTER = Source(NAME, RayCluster, member, describe)
