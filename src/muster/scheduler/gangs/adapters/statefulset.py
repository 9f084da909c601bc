"""Adapter for StatefulSets."""

from __future__ import annotations

from muster.kube.objects.apps import StatefulSet
from muster.kube.objects.pod import Pod
from muster.scheduler.gangs.adapters.membership import (
    Description,
    Membership,
    Role,
    Shape,
    WorkloadRef,
    controller_of,
    member_of,
    number,
)
from muster.scheduler.gangs.adapters.source import Source

NAME = "statefulset"
INDEX = "apps.kubernetes.io/pod-index"


def member(pod: Pod) -> Membership | None:
    """Return the pod's membership, from its owner and ordinal.

    The ordinal is a label since Kubernetes 1.28; before, it is the end of the name.
    """
    owner = controller_of(pod, "StatefulSet", "apps")
    if owner is None:
        return None
    index = number(pod.metadata.labels.get(INDEX) or pod.name.rpartition("-")[2])
    if index is None:
        return None
    return member_of(WorkloadRef(NAME, pod.namespace, owner.name, owner.uid), pod, position=(index,))


def describe(obj: StatefulSet) -> Description:
    """Describe a StatefulSet: all replicas start together.

    With OrderedReady the controller creates one pod after the other, so each starts on its own.
    """
    replicas = 1 if obj.spec.replicas is None else obj.spec.replicas
    minimum = replicas if obj.spec.pod_management_policy == "Parallel" else min(1, replicas)
    return Description(Shape({"": Role(minimum, replicas, replicas)}), "" if replicas else "scaled to 0")


STATEFULSET = Source(NAME, StatefulSet, member, describe)
