"""Pod disruption budgets: how many pods of a set may be evicted at a time."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from muster.kube.affinity import LabelSelector
from muster.kube.meta import KubeObject, Resource
from muster.kube.struct import KubeStruct

ALWAYS_ALLOW = "AlwaysAllow"
"""Pods that are not ready may always be evicted (unhealthyPodEvictionPolicy)."""


class PodDisruptionBudgetSpec(KubeStruct):
    """Which pods it is about. How many of them have to stay is for the disruption controller to say, in the status."""

    selector: LabelSelector | None = None
    unhealthy_pod_eviction_policy: str = ""


class PodDisruptionBudgetStatus(KubeStruct):
    """What the disruption controller counted for generation `observed_generation`."""

    observed_generation: int = 0
    disruptions_allowed: int = 0
    current_healthy: int = 0
    desired_healthy: int = 0


class PodDisruptionBudget(KubeObject):
    """policy/v1 PodDisruptionBudget."""

    RESOURCE: ClassVar[Resource] = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")

    spec: PodDisruptionBudgetSpec = msgspec.field(default_factory=PodDisruptionBudgetSpec)
    status: PodDisruptionBudgetStatus = msgspec.field(default_factory=PodDisruptionBudgetStatus)
