"""Kinds of other projects whose pods are scheduled together: Coscheduling's PodGroup, JobSet, MPIJob, RayCluster.

Sources: kubernetes-sigs/scheduler-plugins (apis/scheduling/v1alpha1), kubernetes-sigs/jobset (api/jobset/v1alpha2),
kubeflow/mpi-operator (pkg/apis/kubeflow/v2beta1), ray-project/kuberay (ray-operator/apis/ray/v1).
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from muster.kube.objects.batch import JobSpec
from muster.kube.objects.meta import Condition, KubeObject, Resource
from muster.kube.objects.struct import KubeStruct


class CoschedulingSpec(KubeStruct):
    """`min_member` pods or none."""

    min_member: int = 1


class CoschedulingPodGroup(KubeObject):
    """scheduling.x-k8s.io/v1alpha1 PodGroup."""

    RESOURCE: ClassVar[Resource] = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup")

    spec: CoschedulingSpec = msgspec.field(default_factory=CoschedulingSpec)


class WorkloadStatus(KubeStruct):
    """The conditions that show whether it has ended."""

    conditions: tuple[Condition, ...] = ()


class JobTemplate(KubeStruct):
    """The Jobs of one part of a JobSet."""

    spec: JobSpec = msgspec.field(default_factory=JobSpec)


class JobSetDependency(KubeStruct):
    """Another part that must have reached `status` (Ready or Complete) before JobSet creates this part."""

    name: str = ""
    status: str = ""


class ReplicatedJob(KubeStruct):
    """One part of a JobSet: `replicas` Jobs of one template."""

    name: str
    replicas: int = 1
    template: JobTemplate = msgspec.field(default_factory=JobTemplate)
    depends_on: tuple[JobSetDependency, ...] | None = None


class StartupPolicy(KubeStruct):
    """`startup_policy_order` is AnyOrder, or InOrder: JobSet creates each part after the one before it is ready."""

    startup_policy_order: str = ""


class JobSetSpec(KubeStruct):
    """Jobs that belong together."""

    replicated_jobs: tuple[ReplicatedJob, ...] = ()
    startup_policy: StartupPolicy | None = None
    suspend: bool | None = None


class JobSet(KubeObject):
    """jobset.x-k8s.io/v1alpha2 JobSet."""

    RESOURCE: ClassVar[Resource] = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet")

    spec: JobSetSpec = msgspec.field(default_factory=JobSetSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)


class MPIReplicaSpec(KubeStruct):
    """The number of pods with the role."""

    replicas: int | None = None


class MPISchedulingPolicy(KubeStruct):
    """`min_available` pods, the launcher among them, are enough to start."""

    min_available: int | None = None


class MPIRunPolicy(KubeStruct):
    """Whether the job runs, and how many pods it needs to start."""

    suspend: bool | None = None
    scheduling_policy: MPISchedulingPolicy | None = None


class MPIJobSpec(KubeStruct):
    """`mpi_replica_specs` by role, Launcher and Worker; `launcher_creation_policy` AtStartup or WaitForWorkersReady."""

    mpi_replica_specs: dict[str, MPIReplicaSpec] = msgspec.field(default_factory=dict)
    run_policy: MPIRunPolicy = msgspec.field(default_factory=MPIRunPolicy)
    launcher_creation_policy: str = ""


class MPIJob(KubeObject):
    """kubeflow.org/v2beta1 MPIJob."""

    RESOURCE: ClassVar[Resource] = Resource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob")

    spec: MPIJobSpec = msgspec.field(default_factory=MPIJobSpec)
    status: WorkloadStatus = msgspec.field(default_factory=WorkloadStatus)


class WorkerGroupSpec(KubeStruct):
    """`replicas` times `num_of_hosts` pods; the autoscaler keeps replicas at `min_replicas` or above."""

    group_name: str
    replicas: int | None = None
    min_replicas: int | None = None
    num_of_hosts: int | None = None
    suspend: bool | None = None


class RayClusterSpec(KubeStruct):
    """The worker groups beside the one head pod."""

    worker_group_specs: tuple[WorkerGroupSpec, ...] | None = None
    enable_in_tree_autoscaling: bool | None = None
    suspend: bool | None = None


class RayCluster(KubeObject):
    """ray.io/v1 RayCluster."""

    RESOURCE: ClassVar[Resource] = Resource("ray.io", "v1", "rayclusters", "RayCluster")

    spec: RayClusterSpec = msgspec.field(default_factory=RayClusterSpec)
