"""NodeHealth: the observations of a node's agent. The health policy decides what they mean."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Final

from msgspec import Meta, field

from muster.api.names import GROUP, VERSION
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct

FINDINGS_MAX: Final = 64
"""Most findings in one record. If there are more, the agent lists the newest of each check and counts the others."""
COUNT_MAX: Final = 2**53
"""Largest count. Some JSON readers round larger numbers."""


class ObservedFinding(KubeStruct, kw_only=True):
    """One incident: a check saw the same fault on the same component, without a pause."""

    check: Annotated[str, Meta(min_length=1, max_length=63, description="Name of the check, such as xid, nic or disk.")]
    component: Annotated[
        str,
        Meta(
            max_length=256,
            description="The component: a GPU's PCI address or UUID, or a device. Empty: the node itself.",
        ),
    ] = ""
    code: Annotated[
        str,
        Meta(min_length=1, max_length=128, description="The kind of fault; details follow a slash: 154/node-reboot."),
    ]
    count: Annotated[
        int, Meta(ge=1, le=COUNT_MAX, description="The number of log lines, counted errors or samples.")
    ] = 1
    first_time: Annotated[datetime, Meta(description="When it was first seen.")]
    last_time: Annotated[datetime, Meta(description="When it was last seen.")]
    message: Annotated[str, Meta(max_length=256, description="The first log line or observation, unchanged.")] = ""


class NodeHealthSpec(KubeStruct):
    """Empty: a NodeHealth has no settings."""


class NodeHealthStatus(KubeStruct):
    """The agent's findings, and the node they are about."""

    node_uid: Annotated[str, Meta(description="UID of the node; a recreated node of the same name has another.")] = (
        field(default="", name="nodeUID")
    )
    boot_id: Annotated[
        str, Meta(description="ID of the boot in which the findings were seen (/proc/sys/kernel/random/boot_id).")
    ] = field(default="", name="bootID")
    driver: Annotated[str, Meta(description="Version of the GPU driver that is loaded; empty: none.")] = ""
    agent_version: Annotated[str, Meta(description="Version of the agent that wrote this.")] = ""
    policy_version: Annotated[str, Meta(description="Revision of the policy that the agent uses; empty: none.")] = ""
    time: Annotated[datetime | None, Meta(description="When the agent wrote this; at least every five minutes.")] = None
    gpus: Annotated[int, Meta(ge=0, description="Number of GPUs that the driver reports; 0 also without a driver.")] = 0
    findings: Annotated[
        tuple[ObservedFinding, ...],
        Meta(max_length=FINDINGS_MAX, description="The newest findings of each check, oldest first."),
    ] = ()
    dropped: Annotated[
        int,
        Meta(ge=0, le=COUNT_MAX, description="Number of older findings that are not listed, since the agent started."),
    ] = 0


class NodeHealth(KubeObject, kw_only=True):
    """The findings of a node's agent, under the name of the node. No other program may write it."""

    RESOURCE: ClassVar[Resource] = Resource(
        group=GROUP, version=VERSION, plural="nodehealths", kind="NodeHealth", namespaced=False
    )

    spec: NodeHealthSpec = field(default_factory=NodeHealthSpec)
    status: NodeHealthStatus = field(default_factory=NodeHealthStatus)
