"""What is decided by: nodes, what was found on them, what is being done about them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from muster.api.node_remediation import NodeRemediation
from muster.api.preflight import PassedTest
from muster.fleet.health.finding import Finding
from muster.fleet.health.policy import Action, Fault
from muster.fleet.remediation.config import RemediationConfig

NONE: Mapping[str, Any] = MappingProxyType({})


class QuarantineRecord(msgspec.Struct, frozen=True):
    """Written on the node beside our taint: whose it is, since when and why.

    Attributes:
        session: name of the NodeRemediation.
        generation: of its status that put the node into quarantine.
        since: RFC 3339.
        why: in words.
        by: who wrote it.
        foreign: somebody else's taint was there already: it stays when we take ours back.
    """

    session: str
    generation: int
    since: str
    why: str
    by: str = "muster-remediation"
    foreign: bool = False


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node.

    Attributes:
        boot_id: of the boot it is in.
        pool, team: by its labels; "" where they say none.
        joining: it has not been in use yet.
        pending: it has the taint of nodes whose test is still to come.
        cordoned: somebody else has.
        ignored: it has the label that opts out.
        tainted: it has the taint of quarantine, whoever put it there.
        record: what we wrote beside the taint; None where that is not ours.
        gpus: how many it has by its capacity.
        has_gpus: its labels say that it has some, whatever its capacity is now.
        taints: keys of hard taints that keep pods away, less those of ours.
        conditions: types that we own and that are True, with their messages.
    """

    name: str
    uid: str
    boot_id: str = ""
    ready: bool = True
    pool: str = ""
    team: str = ""
    joining: bool = False
    pending: bool = False
    cordoned: bool = False
    ignored: bool = False
    tainted: bool = False
    record: QuarantineRecord | None = None
    gpus: int = 0
    has_gpus: bool = False
    taints: frozenset[str] = frozenset()
    conditions: Mapping[str, str] = NONE


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What asks for something to be done about a node.

    Attributes:
        action: the policy's word.
        rule: which line decided, as `NAME (FILE:LINE)`.
        why: in words.
        key: CHECK/CODE: the same one on many nodes is not the nodes' own.
        test: level of preflight that lets the node back; 0: any.
        findings: what it rests on, the newest last.
        first_s, last_s: when the first and the last of it was seen.
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
    """A pod that has to leave before the machine is touched.

    Attributes:
        gang: `NAMESPACE/NAME` of the gang it belongs to; "" where it is alone.
        terminating: it is being deleted.
        refused: why its eviction was refused last.
        retry_at: when that is tried again.
        hopeless: no eviction can ever succeed: a person has to look.
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
    """The pod that resets or reboots a node: `phase` is the pod's."""

    name: str
    uid: str
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
    node: str
    session: str


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at one moment.

    Attributes:
        config: what may be done.
        nodes: by name.
        sessions: NodeRemediations by name.
        evidence: by node; a node that is not there needs nothing.
        tested: newest Preflights by node.
        cleared: by node, its newest test where that cleared findings and its session does not say so yet.
        dead: nodes that are gone without a word, and why one thinks so.
        renewed: of these, when their Leases were renewed last.
        pods: by node, of nodes that are being emptied; a node that is not there was not looked at.
        steps: pods that reset or reboot, by name.
        gangs: by node, gangs that have a slot there.
        free: nodes that are known to be empty.
        replaceable: nodes whose machine somebody can replace.
    """

    config: RemediationConfig = RemediationConfig()
    nodes: Mapping[str, NodeView] = NONE
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
