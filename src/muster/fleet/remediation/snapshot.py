"""The input of decide: nodes, the evidence about them, and their sessions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from muster.api.node_remediation import NodeRemediation
from muster.api.preflight import PassedTest
from muster.api.untyped_steps import typed
from muster.fleet.health.finding import Finding
from muster.fleet.health.policy import Action, Fault
from muster.fleet.nodes.node import FleetNode
from muster.fleet.remediation.config import RemediationConfig

NONE: Mapping[str, Any] = MappingProxyType({})


class QuarantineRecord(msgspec.Struct, frozen=True, rename="camel"):
    """Our record on a node beside the taint: which session wrote it, when and why.

    Attributes:
        session: name of the NodeRemediation.
        generation: the generation of the session's status that put the node into quarantine.
        since: in RFC 3339 format.
        why: the reason, for people.
        by: the writer.
        foreign: the node already had the taint from someone else: it stays when we remove our record.
        event: as in the session's history entry: Entered, Joining or Requested.
        fault_key: as in that entry.
    """

    session: str
    generation: int
    since: str
    why: str
    by: str = "muster-remediation"
    foreign: bool = False
    event: str | None = None
    fault_key: str = ""

    def __post_init__(self) -> None:
        """Set the event of a record that a version without it wrote."""
        if self.event is None:
            event = typed(self.why)["event"]
            msgspec.structs.force_setattr(self, "event", event if event in ("Joining", "Requested") else "Entered")


class RemediationNode(FleetNode, frozen=True, kw_only=True):
    """A node in the form that remediation uses.

    Attributes:
        pool, team: the labels of these names; "" without a label.
        joining: it has not been in use yet.
        pending: it has the taint of nodes whose test is still to come.
        record: our record beside the taint; None if there is none.
        gpus: how many its capacity shows.
        has_gpus: its labels show that it has GPUs, even if its capacity does not.
        keeps_away: keys of hard taints that keep pods away, without ours.
        conditions: our condition types that are True, with their messages.
    """

    pool: str = ""
    team: str = ""
    joining: bool = False
    pending: bool = False
    record: QuarantineRecord | None = None
    gpus: int = 0
    has_gpus: bool = False
    keeps_away: frozenset[str] = frozenset()
    conditions: Mapping[str, str] = NONE


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """The evidence that asks for an action on a node.

    Attributes:
        action: the policy's action.
        rule: the policy line that decided, as `NAME (FILE:LINE)`.
        why: the reason as text.
        key: CHECK/CODE. If many nodes have the same key, the fault is shared.
        test: the preflight level that ends the quarantine; 0: any.
        findings: the findings behind it, the newest last.
        first_s, last_s: when the first and the last of them was seen.
    """

    action: Action
    fault: Fault = "unknown"
    rule: str = ""
    why: str = ""
    key: str = ""
    test: int = 0
    findings: tuple[Finding, ...] = ()
    first_s: float = 0.0
    last_s: float = 0.0


class Tested(msgspec.Struct, frozen=True):
    """A node's newest Preflight. If it is `revoked`, the node has another driver now and is not trusted."""

    node_uid: str
    boot_id: str
    level: int
    passed: bool
    time_s: float
    revoked: bool = False


class PodView(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that must leave before the machine is touched.

    Attributes:
        gang: `NAMESPACE/NAME` of its gang; "" without one.
        terminating: it is being deleted.
        refused: why its eviction was last refused.
        retry_at: when to retry the eviction.
        hopeless: the eviction can never succeed: an operator must act.
    """

    namespace: str
    name: str
    uid: str
    gang: str = ""
    terminating: bool = False
    refused: str = ""
    retry_at: float = 0.0
    hopeless: bool = False


class StepView(msgspec.Struct, frozen=True):
    """The pod that resets or reboots a node; `phase` is the pod's."""

    name: str
    uid: str
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
    node: str
    session: str


class View(msgspec.Struct, frozen=True, kw_only=True):
    """The state of everything at one moment.

    Attributes:
        config: the configuration.
        nodes: by name.
        sessions: NodeRemediations by name.
        evidence: by node; a node without an entry needs nothing.
        tested: newest Preflights by node.
        cleared: by node, its newest test if it cleared findings and its session does not record it yet.
        dead: nodes that died without a report, and why they count as dead.
        renewed: for these, when their Leases were last renewed.
        pods: by node, for drained nodes; the pods of a node without an entry are not known.
        steps: pods that reset or reboot, by name.
        gangs: by node, gangs with a slot there.
        free: nodes that are known to be empty.
        replaceable: nodes whose machine can be replaced.
    """

    config: RemediationConfig = RemediationConfig()
    nodes: Mapping[str, RemediationNode] = NONE
    sessions: Mapping[str, NodeRemediation] = NONE
    evidence: Mapping[str, Evidence] = NONE
    tested: Mapping[str, Tested] = NONE
    cleared: Mapping[str, PassedTest] = NONE
    dead: Mapping[str, str] = NONE
    renewed: Mapping[str, float] = NONE
    pods: Mapping[str, tuple[PodView, ...]] = NONE
    steps: Mapping[str, StepView] = NONE
    gangs: Mapping[str, frozenset[str]] = NONE
    free: frozenset[str] = frozenset()
    replaceable: frozenset[str] = frozenset()
