"""From what a node's agent and its tests said to what asks for something to be done: the policy's word and line."""

from __future__ import annotations

from collections.abc import Mapping

from muster.api.node_health import NodeHealth
from muster.api.node_remediation import CAUSES_MAX, NodeRemediation
from muster.api.preflight import Preflight
from muster.fleet.health.decide import Decision, History, decide
from muster.fleet.health.finding import Finding
from muster.fleet.health.policy import Policy
from muster.fleet.health.record import finding_of
from muster.fleet.remediation import record
from muster.fleet.remediation.snapshot import Evidence, Tested

CHECK = "preflight"
"""The check whose finding is a test that was not passed."""


def tested_of(preflight: Preflight) -> Tested:
    """The newest test as remediation looks at it."""
    spec = preflight.spec
    revoked = spec.revoked_time is not None
    return Tested(spec.node_uid, spec.boot_id, spec.level, spec.passed, spec.time.timestamp(), revoked)


def decision_of(
    uid: str,
    boot_id: str,
    labels: Mapping[str, str],
    health: NodeHealth | None,
    preflight: Preflight | None,
    session: NodeRemediation | None,
    policy: Policy,
    now: float,
    said: Finding | None = None,
) -> Decision:
    """Return what the policy says of a node.

    Args:
        uid: of the node: records of another one of its name say nothing of it.
        boot_id: the boot it is in: a test that failed in another one says nothing of this one.
        labels: of the node, for the policy of its pool.
        health: what its agent said.
        preflight: its newest test. A pass clears earlier findings, also after it was revoked for another driver.
        session: what is being done about it.
        policy: what findings mean.
        now: seconds since the epoch.
        said: what the mesh says of the node.
    """
    findings: list[Finding] = []
    if health is not None and health.status.node_uid == uid:
        findings = [finding_of(each) for each in health.status.findings]
    if said is not None:
        findings.append(said)
    tested = preflight.spec if preflight is not None and preflight.spec.node_uid == uid else None
    if tested is not None and not tested.passed and tested.boot_id == boot_id and tested.revoked_time is None:
        findings.append(_failed(tested.time.timestamp(), preflight))
    if not findings:
        return Decision()
    pool = policy.of_node(labels)
    cleared, remediations = _past(session)
    decision = decide(findings, History(cleared_s=cleared, remediations_s=remediations), pool, now)
    if tested is not None and tested.passed and tested.level >= decision.test and tested.time.timestamp() > cleared:
        history = History(cleared_s=tested.time.timestamp(), remediations_s=remediations)
        decision = decide(findings, history, pool, now)
    return decision


def evidence_of(decision: Decision) -> tuple[Evidence | None, float | None]:
    """Return what asks for something to be done about a node, and when that may be another answer by itself."""
    return _evidence(decision), min((reason.until_s for reason in decision.reasons), default=None)


def _past(session: NodeRemediation | None) -> tuple[float, tuple[float, ...]]:
    """Up to when all was well, and when it had been put out of use before: the open time is not over."""
    if session is None:
        return 0.0, ()
    history = session.status.history
    released = max((step.time.timestamp() for step in history if record.is_a(step, record.RELEASED)), default=0.0)
    cleared = max(map(record.cleared, history), default=0.0)
    return cleared, tuple(time for time in record.quarantines(session) if time < released)


def _failed(time_s: float, preflight: Preflight | None) -> Finding:
    failures = preflight.spec.failures if preflight is not None else ()
    first = failures[0] if failures else None
    return Finding(
        check=CHECK,
        component=first.gpu if first is not None else "",
        code="failed",
        first_s=time_s,
        last_s=time_s,
        message=f"{first.test}: {first.message or first.code}" if first is not None else "",
    )


def _evidence(decision: Decision) -> Evidence | None:
    if decision.action in ("none", "observe"):
        return None
    first = decision.reasons[0]
    findings = sorted({each for reason in decision.reasons for each in reason.findings}, key=lambda each: each.last_s)
    deciding = first.findings[0]
    return Evidence(
        action=decision.action,
        fault=decision.fault,
        rule=f"{decision.rule} ({decision.where})",
        why=decision.why,
        key=f"{deciding.check}/{deciding.code.partition('/')[0]}",
        test=decision.test,
        findings=tuple(findings[-CAUSES_MAX:]),
        first_s=min(each.first_s for each in first.findings),
        last_s=findings[-1].last_s,
    )
