"""What decide asks for; each action may be carried out twice without harm."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from muster.api.node_remediation import NodeRemediation, NodeRemediationStatus
from muster.fleet.remediation.snapshot import NONE, NodeView, PodView


class Tell(msgspec.Struct, frozen=True, kw_only=True):
    """Say something about a node in an Event; of no node: about the ConfigMap."""

    node: NodeView | None
    reason: str
    message: str
    warning: bool = True


class Open(msgspec.Struct, frozen=True, kw_only=True):
    """Make the object of a node session, with this status."""

    session: NodeRemediation
    told: Tell | None = None


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """Write the status of a session, only where it is as it was when this was decided."""

    session: NodeRemediation
    status: NodeRemediationStatus
    why: str
    counts: bool = True
    """Whether it enters a rung or a phase; otherwise only the message changes."""
    told: Tell | None = None
    """What is said once that is written."""


class Quarantine(msgspec.Struct, frozen=True, kw_only=True):
    """Put the taint and the record on the node."""

    node: NodeView
    session: str
    generation: int
    since: float
    why: str


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """Take back the taint and the record, where they are this session's of this generation or an earlier one."""

    node: NodeView
    session: str
    generation: int


class Describe(msgspec.Struct, frozen=True, kw_only=True):
    """Set the conditions of the node that are ours: by type the message, None where one no longer holds."""

    node: NodeView
    conditions: Mapping[str, str | None]


class Evict(msgspec.Struct, frozen=True, kw_only=True):
    """Evict these pods together: all that one gang has on nodes that are drained, or one that is alone."""

    pods: tuple[PodView, ...]
    gang: str = ""
    why: str = ""


class RunStep(msgspec.Struct, frozen=True, kw_only=True):
    """Start the pod that resets or reboots the node."""

    name: str
    node: NodeView
    session: str
    step: str
    boot_id: str
    gpus: tuple[str, ...] = ()


class ForgetStep(msgspec.Struct, frozen=True, kw_only=True):
    """Delete a pod that has done its work."""

    name: str
    uid: str


class ReplaceMachine(msgspec.Struct, frozen=True, kw_only=True):
    """Have the node's machine replaced by whoever provides it."""

    node: NodeView
    session: str
    generation: int


class Forget(msgspec.Struct, frozen=True, kw_only=True):
    """Delete the object of a session that ended long ago."""

    session: NodeRemediation


Action = Open | Move | Quarantine | Release | Describe | Evict | RunStep | ForgetStep | ReplaceMachine | Forget


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to do now.

    Attributes:
        actions: in order of urgency; independent of each other.
        kept: spare nodes by name, and for which gang.
        going: gangs whose pods are being evicted.
        held: why nodes are not put into quarantine or worked on, and how many.
        spares_for: gangs that need so many empty nodes like this node.
        wake_at: when to decide again though nothing changes.
    """

    actions: tuple[Action, ...] = ()
    kept: Mapping[str, str] = NONE
    going: frozenset[str] = frozenset()
    held: Mapping[str, int] = NONE
    spares_for: Mapping[str, tuple[str, ...]] = NONE
    wake_at: float | None = None
