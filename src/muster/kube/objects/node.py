"""Nodes."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

import msgspec

from muster.kube.objects.container import QuantityValue
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct


class Taint(KubeStruct):
    """`effect`: NoSchedule, PreferNoSchedule or NoExecute."""

    key: str
    effect: str
    value: str = ""
    time_added: datetime | None = None


class NodeSpec(KubeStruct):
    """The desired state of a node. `taints` is one atomic list: every writer must keep the others' entries."""

    pod_cidr: str = msgspec.field(default="", name="podCIDR")
    provider_id: str = msgspec.field(default="", name="providerID")
    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeCondition(KubeStruct):
    """Ready, MemoryPressure, and what health agents add."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_heartbeat_time: datetime | None = None
    last_transition_time: datetime | None = None


class NodeSystemInfo(KubeStruct):
    """The machine as the kubelet reports it. `boot_id` changes at each boot."""

    boot_id: str = msgspec.field(default="", name="bootID")


class NodeAddress(KubeStruct):
    """`type` is InternalIP, ExternalIP or Hostname."""

    type: str
    address: str


class NodeStatus(KubeStruct):
    """A node's capacity, conditions and addresses."""

    capacity: dict[str, QuantityValue] = msgspec.field(default_factory=dict)
    allocatable: dict[str, QuantityValue] = msgspec.field(default_factory=dict)
    conditions: tuple[NodeCondition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    node_info: NodeSystemInfo | None = None


class Node(KubeObject):
    """core/v1 Node."""

    RESOURCE: ClassVar[Resource] = Resource("", "v1", "nodes", "Node", namespaced=False)

    spec: NodeSpec = msgspec.field(default_factory=NodeSpec)
    status: NodeStatus = msgspec.field(default_factory=NodeStatus)

    @property
    def ready(self) -> bool:
        """Returns whether the Ready condition holds."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)
