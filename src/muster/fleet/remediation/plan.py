"""The remediation plan: actions that may each be executed twice without harm."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from muster.api.node_remediation import NodeRemediation, NodeRemediationStatus
from muster.fleet.remediation.snapshot import NONE, PodView, RemediationNode


class RecordEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Write an Event about a node, or about the ConfigMap if `node` is None."""

    node: RemediationNode | None
    reason: str
    message: str
    warning: bool = True


class Open(msgspec.Struct, frozen=True, kw_only=True):
    """Create a node's session with this status."""

    session: NodeRemediation
    event: RecordEvent | None = None


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """Write the status of a session, on the condition that the session has not changed since the decision."""

    session: NodeRemediation
    status: NodeRemediationStatus
    why: str
    counts: bool = True
    """Whether a rung or a phase is entered; otherwise only the message or lasting facts change."""
    event: RecordEvent | None = None
    """The Event to write after that."""


class Quarantine(msgspec.Struct, frozen=True, kw_only=True):
    """Put the taint and the record on the node."""

    node: RemediationNode
    session: str
    generation: int
    since: float
    why: str
    event: str
    fault_key: str


class Release(msgspec.Struct, frozen=True, kw_only=True):
    """Remove the taint and the record, if they belong to this session and to this generation or an earlier one."""

    node: RemediationNode
    session: str
    generation: int


class Describe(msgspec.Struct, frozen=True, kw_only=True):
    """Set our conditions of the node: by type the message, or None if the condition no longer holds."""

    node: RemediationNode
    conditions: Mapping[str, str | None]


class Evict(msgspec.Struct, frozen=True, kw_only=True):
    """Evict these pods together: all pods of one gang on drained nodes, or a single pod."""

    pods: tuple[PodView, ...]
    gang: str = ""
    why: str = ""


class RunStep(msgspec.Struct, frozen=True, kw_only=True):
    """Start the pod that resets or reboots the node."""

    name: str
    node: RemediationNode
    session: str
    step: str
    boot_id: str
    gpus: tuple[str, ...] = ()


class ForgetStep(msgspec.Struct, frozen=True, kw_only=True):
    """Delete a pod that has done its work."""

    name: str
    uid: str


class ReplaceMachine(msgspec.Struct, frozen=True, kw_only=True):
    """Have the node's machine replaced by its provider."""

    node: RemediationNode
    session: str
    generation: int


class Forget(msgspec.Struct, frozen=True, kw_only=True):
    """Delete the object of a session that ended long ago."""

    session: NodeRemediation


Action = Open | Move | Quarantine | Release | Describe | Evict | RunStep | ForgetStep | ReplaceMachine | Forget


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The actions to take now, and what other parts need to know.

    Attributes:
        actions: in order of urgency; independent of each other.
        kept: reserved spare nodes by name, and the gang of each.
        going: gangs whose pods are being evicted.
        held: by reason, how many nodes are not quarantined or worked on.
        spares_for: by gang, the drained nodes for which it needs similar empty ones.
        wake_at: when to decide again even if nothing changes.
    """

    actions: tuple[Action, ...] = ()
    kept: Mapping[str, str] = NONE
    going: frozenset[str] = frozenset()
    held: Mapping[str, int] = NONE
    spares_for: Mapping[str, tuple[str, ...]] = NONE
    wake_at: float | None = None
