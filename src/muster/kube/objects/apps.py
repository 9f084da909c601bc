"""StatefulSets and Deployments: only the number of their pods."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct


class StatefulSetSpec(KubeStruct):
    """`pod_management_policy` is OrderedReady (the default: one pod after the other) or Parallel."""

    replicas: int | None = None
    pod_management_policy: str = ""


class StatefulSet(KubeObject):
    """apps/v1 StatefulSet."""

    RESOURCE: ClassVar[Resource] = Resource("apps", "v1", "statefulsets", "StatefulSet")

    spec: StatefulSetSpec = msgspec.field(default_factory=StatefulSetSpec)


class DeploymentSpec(KubeStruct):
    """The number of pods; the other fields are written and never read."""

    replicas: int | None = None


class Deployment(KubeObject):
    """apps/v1 Deployment."""

    RESOURCE: ClassVar[Resource] = Resource("apps", "v1", "deployments", "Deployment")

    spec: DeploymentSpec = msgspec.field(default_factory=DeploymentSpec)
