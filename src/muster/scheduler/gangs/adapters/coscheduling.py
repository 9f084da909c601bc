"""Coscheduling: label `scheduling.x-k8s.io/pod-group` and its PodGroup (kubernetes-sigs/scheduler-plugins)."""

from __future__ import annotations

from muster.kube.objects.pod import Pod
from muster.kube.objects.workloads import CoschedulingPodGroup
from muster.scheduler.gangs.adapters.membership import Description, Membership, Role, Shape, WorkloadRef, member_of
from muster.scheduler.gangs.adapters.source import Source

NAME = "pod-group"
LABEL = "scheduling.x-k8s.io/pod-group"


def member(pod: Pod) -> Membership | None:
    """Return the pod's membership, from its label; None without the label."""
    name = pod.metadata.labels.get(LABEL)
    return member_of(WorkloadRef(NAME, pod.namespace, name), pod) if name else None


def describe(group: CoschedulingPodGroup) -> Description:
    """Describe a PodGroup: `minMember` pods start together. Further pods with the label join if there is room."""
    minimum = max(1, group.spec.min_member)
    return Description(Shape({"": Role(minimum, minimum, None)}))


COSCHEDULING = Source(NAME, CoschedulingPodGroup, member, describe)
