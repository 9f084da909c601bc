"""StatefulSets, as far as scheduling their pods together needs them."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from muster.kube.meta import KubeObject, Resource
from muster.kube.struct import KubeStruct


class StatefulSetSpec(KubeStruct):
    """`pod_management_policy` is OrderedReady (the default: one pod after the other) or Parallel."""

    replicas: int | None = None
    pod_management_policy: str = ""


class StatefulSet(KubeObject):
    """apps/v1 StatefulSet."""

    RESOURCE: ClassVar[Resource] = Resource("apps", "v1", "statefulsets", "StatefulSet")

    spec: StatefulSetSpec = msgspec.field(default_factory=StatefulSetSpec)
