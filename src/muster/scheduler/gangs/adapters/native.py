"""Adapter for Kubernetes' pod groups: `spec.schedulingGroup.podGroupName` (KEP-4671, scheduling.k8s.io/v1alpha2)."""

from __future__ import annotations

from muster.kube.objects.pod import Pod
from muster.kube.objects.scheduling import PodGroup
from muster.scheduler.gangs.adapters.membership import Description, Membership, Role, Shape, WorkloadRef, member_of
from muster.scheduler.gangs.adapters.source import Source

NAME = "podgroup"


def member(pod: Pod) -> Membership | None:
    """Return the pod's membership, from the name of its pod group."""
    group = pod.spec.scheduling_group
    name = group.get("podGroupName") if group else None
    return member_of(WorkloadRef(NAME, pod.namespace, name), pod) if name else None


def describe(group: PodGroup) -> Description:
    """Describe a PodGroup.

    With policy `gang`, the first minCount pods start together. With `basic`, each pod starts when it can.
    """
    gang = group.spec.scheduling_policy.gang
    minimum = gang.min_count if gang is not None else 1
    return Description(Shape({"": Role(minimum, minimum, None)}))


NATIVE = Source(NAME, PodGroup, member, describe)
