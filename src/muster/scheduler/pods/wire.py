"""The pod as the scheduler reads it: kube's partial Pod and the few fields that only scheduling has to know.

A constraint that is dropped while decoding would be ignored in silence, so what could hold one is named here.
"""

from __future__ import annotations

from typing import Any

import msgspec

from muster.kube.container import ResourceRequirements
from muster.kube.pod import Pod, PodSpec
from muster.kube.volume import Volume


class SchedulingVolume(Volume):
    """A volume; `ephemeral` is a claim made for the pod, named `{pod}-{volume}` (Kubernetes: ephemeral volumes)."""

    ephemeral: dict[str, Any] | None = None


class SchedulingPodSpec(PodSpec):
    """A pod's spec with what other parts of Muster never read."""

    volumes: tuple[SchedulingVolume, ...] = ()
    resources: ResourceRequirements | None = None
    scheduling_group: dict[str, Any] | None = None
    workload_ref: dict[str, Any] | None = None


class SchedulingPod(Pod):
    """core/v1 Pod as the scheduler sees it."""

    RESOURCE = Pod.RESOURCE

    spec: SchedulingPodSpec = msgspec.field(default_factory=SchedulingPodSpec)
