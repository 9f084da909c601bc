"""NodeHealth: what a node's own agent observed on it. Observations only: what they mean is up to the policy."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Final

from msgspec import Meta, field

from muster.api.names import GROUP, VERSION
from muster.kube.objects.meta import KubeObject, Resource
from muster.kube.objects.struct import KubeStruct

FINDINGS_MAX: Final = 64
"""Findings in one record; of more the newest of each check are kept, and the others counted."""
COUNT_MAX: Final = 2**53
"""A count stays here: larger numbers are not exact in every reader of JSON."""


class ObservedFinding(KubeStruct, kw_only=True):
    """One incident: the same thing seen on the same component, without a pause."""

    check: Annotated[str, Meta(min_length=1, max_length=63, description="Name of the check, such as xid, nic or disk.")]
    component: Annotated[
        str,
        Meta(max_length=256, description="The part: a GPU's PCI address or UUID, a device; empty: the node itself."),
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
    message: Annotated[str, Meta(max_length=256, description="The first log line or observation, as it was.")] = ""


class NodeHealthSpec(KubeStruct):
    """Empty: a NodeHealth has no settings."""


class NodeHealthStatus(KubeStruct):
    """The agent's findings, and the node they are about."""

    node_uid: Annotated[str, Meta(description="UID of the node; a recreated node of the same name has another.")] = (
        field(default="", name="nodeUID")
    )
    boot_id: Annotated[str, Meta(description="The boot it was seen in (/proc/sys/kernel/random/boot_id).")] = field(
        default="", name="bootID"
    )
    driver: Annotated[str, Meta(description="Version of the GPU driver that is loaded; empty: none.")] = ""
    agent_version: Annotated[str, Meta(description="Version of the agent that wrote this.")] = ""
    policy_version: Annotated[
        str, Meta(description="Revision of the policy that the agent was set up with; empty: none.")
    ] = ""
    time: Annotated[datetime | None, Meta(description="When the agent wrote this; at least every five minutes.")] = None
    gpus: Annotated[int, Meta(ge=0, description="GPUs that the driver has; 0 also where there is no driver.")] = 0
    findings: Annotated[
        tuple[ObservedFinding, ...],
        Meta(max_length=FINDINGS_MAX, description="The newest findings of each check, oldest first."),
    ] = ()
    dropped: Annotated[
        int, Meta(ge=0, le=COUNT_MAX, description="Older findings that had no room, since the agent started.")
    ] = 0


class NodeHealth(KubeObject, kw_only=True):
    """The findings of a node's agent, under the name of the node. No other program may write it."""

    RESOURCE: ClassVar[Resource] = Resource(
        group=GROUP, version=VERSION, plural="nodehealths", kind="NodeHealth", namespaced=False
    )

    spec: NodeHealthSpec = field(default_factory=NodeHealthSpec)
    status: NodeHealthStatus = field(default_factory=NodeHealthStatus)
