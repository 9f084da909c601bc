"""Pod types of the scheduler: kube's partial Pod with the additional fields that scheduling needs.

Decoding drops unknown fields, so every field that may hold a constraint must be declared here. A dropped constraint
would be ignored without a warning.
"""

from __future__ import annotations

from typing import Any

import msgspec

from muster.kube.objects.container import ResourceRequirements
from muster.kube.objects.pod import Pod, PodSpec
from muster.kube.objects.volume import Volume


class SchedulingVolume(Volume):
    """A volume; `ephemeral` has a claim of its own, named `{pod}-{volume}` (Kubernetes: ephemeral volumes)."""

    ephemeral: dict[str, Any] | None = None


class SchedulingPodSpec(PodSpec):
    """A pod's spec with fields that only the scheduler reads."""

    volumes: tuple[SchedulingVolume, ...] = ()
    resources: ResourceRequirements | None = None
    scheduling_group: dict[str, Any] | None = None
    workload_ref: dict[str, Any] | None = None


class SchedulingPod(Pod):
    """core/v1 Pod as the scheduler reads it."""

    RESOURCE = Pod.RESOURCE

    spec: SchedulingPodSpec = msgspec.field(default_factory=SchedulingPodSpec)
