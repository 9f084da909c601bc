"""Pod disruption budgets: how many pods of a set may be evicted at a time."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from muster.kube.objects.affinity import LabelSelector
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct

ALWAYS_ALLOW = "AlwaysAllow"
"""With this policy, pods that are not ready may always be evicted (unhealthyPodEvictionPolicy)."""


class PodDisruptionBudgetSpec(KubeStruct):
    """The pods that the budget selects.

    The disruption controller writes into the status how many of these pods must stay.
    """

    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str = ""


class PodDisruptionBudgetStatus(KubeStruct):
    """The disruption controller's count for generation `observed_generation`."""

    observed_generation: int = 0
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0


class PodDisruptionBudget(KubeObject):
    """policy/v1 PodDisruptionBudget."""

    RESOURCE: ClassVar[Resource] = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")

    spec: PodDisruptionBudgetSpec = msgspec.field(default_factory=PodDisruptionBudgetSpec)
    status: PodDisruptionBudgetStatus = msgspec.field(default_factory=PodDisruptionBudgetStatus)
