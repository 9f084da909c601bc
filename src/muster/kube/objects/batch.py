"""Jobs: only the fields that gang scheduling needs."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from muster.kube.objects.meta import Condition, KubeObject, Resource
from muster.kube.objects.struct import KubeStruct


class PodFailurePolicyOnExitCodes(KubeStruct):
    """Exit codes of a rule; `container_name` is None for all containers. `operator` is In or NotIn."""

    container_name: str | None = None
    operator: str = ""
    values: tuple[int, ...] = ()


class PodFailurePolicyOnPodCondition(KubeStruct):
    """The pod condition of a rule."""

    type: str = ""
    status: str = "True"


class PodFailurePolicyRule(KubeStruct):
    """`action` is Ignore, Count, FailIndex or FailJob; the first rule that matches a failed pod decides."""

    action: str = ""
    on_exit_codes: PodFailurePolicyOnExitCodes | None = None
    on_pod_conditions: tuple[PodFailurePolicyOnPodCondition, ...] | None = None


class PodFailurePolicy(KubeStruct):
    """Rules of a Job for failed pods (KEP-3329)."""

    rules: tuple[PodFailurePolicyRule, ...] = ()


class ScheduledBy(KubeStruct):
    """The scheduler of a template's pods."""

    scheduler_name: str = ""


class JobPodTemplate(KubeStruct):
    """A pod template; only its scheduler is read."""

    spec: ScheduledBy = msgspec.field(default_factory=ScheduledBy)


class JobSpec(KubeStruct):
    """The number of a Job's pods; `completion_mode` is NonIndexed or Indexed."""

    parallelism: int | None = None
    completions: int | None = None
    completion_mode: str | None = None
    suspend: bool | None = None
    pod_failure_policy: PodFailurePolicy | None = None
    template: JobPodTemplate = msgspec.field(default_factory=JobPodTemplate)


class JobStatus(KubeStruct):
    """`failed_indexes` is text such as "1,3-5,7"."""

    conditions: tuple[Condition, ...] = ()
    failed_indexes: str | None = None


class Job(KubeObject):
    """batch/v1 Job."""

    RESOURCE: ClassVar[Resource] = Resource("batch", "v1", "jobs", "Job")

    spec: JobSpec = msgspec.field(default_factory=JobSpec)
    status: JobStatus = msgspec.field(default_factory=JobStatus)
