"""Priority classes."""

from __future__ import annotations

from typing import ClassVar

from muster.kube.meta import KubeObject, Resource


class PriorityClass(KubeObject):
    """scheduling.k8s.io/v1 PriorityClass."""

    RESOURCE: ClassVar[Resource] = Resource(
        "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False
    )

    value: int = 0
    global_default: bool = False
    preemption_policy: str | None = None
    description: str = ""
