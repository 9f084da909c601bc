"""Priority classes and pod groups."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct


class PriorityClass(KubeObject):
    """scheduling.k8s.io/v1 PriorityClass."""

    RESOURCE: ClassVar[Resource] = Resource(
        "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False
    )

    value: int = 0
    preemption_policy: str | None = None
    description: str = ""


class GangSchedulingPolicy(KubeStruct):
    """All or nothing, from `min_count` pods on."""

    min_count: int = 1


class PodGroupSchedulingPolicy(KubeStruct):
    """Exactly one is set: `gang`, or `basic` (pod by pod), which has no fields of its own."""

    gang: GangSchedulingPolicy | None = None


class PodGroupSpec(KubeStruct):
    """How the pods of the group are scheduled."""

    scheduling_policy: PodGroupSchedulingPolicy = msgspec.field(default_factory=PodGroupSchedulingPolicy)


class PodGroup(KubeObject):
    """scheduling.k8s.io/v1alpha2 PodGroup (KEP-4671, Kubernetes 1.36)."""

    RESOURCE: ClassVar[Resource] = Resource("scheduling.k8s.io", "v1alpha2", "podgroups", "PodGroup")

    spec: PodGroupSpec = msgspec.field(default_factory=PodGroupSpec)
