"""Pods, with the fields that are needed to place them, run them and read their state.

Decoding drops all other fields, such as some volume sources and ephemeral containers. So never write such a pod back:
patch pods of other writers. A field that may hold a constraint on the pod's node must be named here: the scheduler
would ignore a dropped constraint without a warning.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

import msgspec

from muster.kube.objects.affinity import Affinity, Toleration, TopologySpreadConstraint
from muster.kube.objects.container import (
    Container,
    ContainerStatus,
    QuantityValue,
    ResourceRequirements,
)
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct
from muster.kube.objects.volume import Volume


class PodSchedulingGate(KubeStruct):
    """A reason not to consider the pod yet."""

    name: str


class PodReadinessGate(KubeStruct):
    """A condition that counts towards Ready."""

    condition_type: str


class PodSecurityContext(KubeStruct):
    """Settings that all containers of a pod share."""

    run_as_user: int | None = None
    run_as_group: int | None = None
    run_as_non_root: bool | None = None
    fs_group: int | None = None
    supplemental_groups: tuple[int, ...] = ()


class PodResourceClaim(KubeStruct):
    """A resource claim the pod uses (dynamic resource allocation)."""

    name: str


class PodSpec(KubeStruct):
    """The desired state of a pod."""

    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    node_name: str = ""
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    topology_spread_constraints: tuple[TopologySpreadConstraint, ...] = ()
    scheduler_name: str = ""
    scheduling_gates: tuple[PodSchedulingGate, ...] = ()
    readiness_gates: tuple[PodReadinessGate, ...] = ()
    priority: int | None = None
    priority_class_name: str = ""
    preemption_policy: str | None = None
    overhead: dict[str, QuantityValue] = msgspec.field(default_factory=dict)
    resources: ResourceRequirements | None = None
    resource_claims: tuple[PodResourceClaim, ...] = ()
    scheduling_group: dict[str, Any] | None = None
    workload_ref: dict[str, Any] | None = None
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None
    service_account_name: str = ""
    host_network: bool = False
    hostname: str = ""
    security_context: PodSecurityContext | None = None


class PodCondition(KubeStruct):
    """PodScheduled, Ready, ContainersReady, DisruptionTarget and others."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None
    observed_generation: int = 0


class PodIP(KubeStruct):
    """One address of a pod."""

    ip: str = ""


class PodStatus(KubeStruct):
    """The state of a pod; `phase` is Pending, Running, Succeeded, Failed or Unknown."""

    phase: str = ""
    conditions: tuple[PodCondition, ...] = ()
    reason: str = ""
    message: str = ""
    host_ip: str = msgspec.field(default="", name="hostIP")
    pod_ip: str = msgspec.field(default="", name="podIP")
    pod_ips: tuple[PodIP, ...] = msgspec.field(default=(), name="podIPs")
    start_time: datetime | None = None
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    qos_class: str = ""
    observed_generation: int = 0


class Pod(KubeObject):
    """core/v1 Pod."""

    RESOURCE: ClassVar[Resource] = Resource("", "v1", "pods", "Pod")

    spec: PodSpec = msgspec.field(default_factory=PodSpec)
    status: PodStatus = msgspec.field(default_factory=PodStatus)

    @property
    def terminating(self) -> bool:
        """Returns whether the pod's deletion was requested."""
        return self.metadata.deletion_timestamp is not None

    @property
    def finished(self) -> bool:
        """Returns whether no container will ever run again."""
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def ready(self) -> bool:
        """Returns whether the Ready condition holds."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)
