"""The state of a node in one word, and the duration of each stage, for commands and metrics."""

from __future__ import annotations

from enum import StrEnum

from muster.api.node_remediation import NodeRemediation, NodeRemediationStatus, RemediationStep
from muster.fleet.remediation.ladder import record
from muster.fleet.remediation.ladder.exits import is_booted


class NodeCare(StrEnum):
    """The state of a node in remediation. Values appear in output for scripts: never rename one."""

    NONE = "None"
    OBSERVED = "Observed"
    SUSPECT = "Suspect"
    QUARANTINED = "Quarantined"
    DRAINING = "Draining"
    TESTING = "Testing"
    RESETTING = "Resetting"
    REBOOTING = "Rebooting"
    REPLACING = "Replacing"
    NEEDS_OPERATOR = "NeedsOperator"


def state_of(session: NodeRemediation | None) -> NodeCare:
    """Return a node's state from its session; `NodeCare.NONE` without a session."""
    if session is None or session.status.state == "Released":
        return NodeCare.NONE
    status = session.status
    if status.state == "NeedsOperator":
        return NodeCare.NEEDS_OPERATOR
    if status.rung == "Drain":
        return NodeCare.TESTING if record.last(status, "Emptied") is not None else NodeCare.DRAINING
    if status.rung == "ResetGPU":
        return NodeCare.TESTING if record.last(status, "Reset") is not None else NodeCare.RESETTING
    if status.rung == "Reboot":
        return NodeCare.TESTING if is_booted(session) else NodeCare.REBOOTING
    return {
        "Observe": NodeCare.OBSERVED,
        "Condition": NodeCare.SUSPECT,
        "Quarantine": NodeCare.QUARANTINED,
        "Replace": NodeCare.REPLACING,
        "Human": NodeCare.NEEDS_OPERATOR,
    }[status.rung]


def stage_of(session: NodeRemediation, status: NodeRemediationStatus) -> tuple[str, float] | None:
    """Return the stage that the newest history entry ends, and its duration in seconds.

    The stages are detected, quarantined, drained, repaired and released; each is measured from the previous one.

    The job's own status (`faults[].timeline`, which names the node) has the later stages: a new node, ready pods, the
    lost step passed again.
    """
    steps = status.history if status.state == "Released" else record.episode(status)
    if not steps:
        return None
    newest, before = steps[-1], steps[:-1]
    if newest.event == "Released":
        return _since("released", newest, before[-1]) if before else None
    if newest.event == "Emptied":
        return _since("drained", newest, _first(before, "Quarantine") or newest)
    if newest.event in ("Reset", "Booted"):
        emptied = next((step for step in reversed(before) if step.event == "Emptied"), newest)
        return _since("repaired", newest, emptied)
    if newest.rung == "Quarantine":
        return _since("quarantined", newest, before[0] if before else newest)
    if newest.event == "Opened":
        return detected(session, newest)
    return None


def detected(session: NodeRemediation, opened: RemediationStep) -> tuple[str, float] | None:
    """Return how long it took from the fault until its session was opened."""
    first = min((each.first_time for each in session.spec.cause), default=None)
    return ("detected", max(0.0, (opened.time - first).total_seconds())) if first is not None else None


def _first(steps: tuple[RemediationStep, ...], rung: str) -> RemediationStep | None:
    return next((step for step in steps if step.rung == rung), None)


def _since(stage: str, newest: RemediationStep, before: RemediationStep) -> tuple[str, float]:
    return stage, max(0.0, (newest.time - before.time).total_seconds())
