"""Turns a node's findings and tests into the evidence for remediation, by the rules of the health policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from muster.api.node_health import NodeHealth
from muster.api.node_remediation import CAUSES_MAX, NodeRemediation
from muster.api.preflight import PassedTest, Preflight, last_pass
from muster.fleet.health.decide import Decision, History, decide
from muster.fleet.health.finding import Finding
from muster.fleet.health.policy import Policy
from muster.fleet.health.record import finding_of
from muster.fleet.remediation.ladder import record
from muster.fleet.remediation.snapshot import Evidence, Tested

CHECK = "preflight"
"""The check of the finding that stands for a failed test."""


def tested_of(preflight: Preflight) -> Tested:
    """Return the newest test in the form that remediation uses."""
    spec = preflight.spec
    revoked = spec.revoked_time is not None
    return Tested(spec.node_uid, spec.boot_id, spec.level, spec.passed, spec.time.timestamp(), revoked)


class Judged(NamedTuple):
    """The policy's decision for a node, and the newest test if it cleared findings and is not written yet."""

    decision: Decision
    cleared: PassedTest | None = None


def judged(
    uid: str,
    boot_id: str,
    labels: Mapping[str, str],
    health: NodeHealth | None,
    preflight: Preflight | None,
    session: NodeRemediation | None,
    policy: Policy,
    now: float,
    said: Finding | None = None,
) -> Judged:
    """Return the policy's decision for a node.

    Args:
        uid: UID of the node. Records with another UID are about an earlier node of the same name.
        boot_id: the node's current boot. A test that failed in another boot does not count.
        labels: labels of the node, which select the policy of its pool.
        health: the findings of the node's agent.
        preflight: its newest test. A pass clears earlier findings, even if it was revoked for a driver change or a
            later test failed.
        session: its remediation session, with earlier passes that cleared findings.
        policy: the health policy.
        now: seconds since the epoch.
        said: the finding of the mesh about the node.
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
        return Judged(Decision())
    pool = policy.of_node(labels)
    passes = session.status.passes if session is not None else ()
    cleared_s, remediations = _past(session)
    decision = _decided(findings, cleared_s, passes, remediations, pool, now)
    newest = last_pass(tested) if tested is not None else None
    if newest is None or not decision.reasons:
        return Judged(decision)
    after = _decided(findings, cleared_s, (*passes, newest), remediations, pool, now)
    return Judged(after, newest if after != decision else None)


def _decided(
    findings: Sequence[Finding],
    cleared_s: float,
    passes: Sequence[PassedTest],
    remediations_s: tuple[float, ...],
    policy: Policy,
    now: float,
) -> Decision:
    """Decide by the findings that no pass of a sufficient level has cleared."""
    while True:
        history = History(cleared_s=cleared_s, remediations_s=remediations_s)
        decision = decide(findings, history, policy, now)
        passed_s = max((time_s for each in passes if (time_s := _clears(each, decision)) is not None), default=0.0)
        if not decision.reasons or passed_s <= cleared_s:
            return decision
        cleared_s = passed_s  # the remaining reasons may ask for a lower level, for which there may be a later pass


def _clears(test: PassedTest, decision: Decision) -> float | None:
    """Return the time until which a passed test clears findings; None if an earlier finding asks for a higher level."""
    time_s = test.time.timestamp()
    before = (each for each in decision.reasons if max(finding.last_s for finding in each.findings) <= time_s)
    return time_s if all(each.test <= test.level for each in before) else None


def evidence_of(decision: Decision) -> tuple[Evidence | None, float | None]:
    """Return the evidence for remediation, and when the decision may change without new input."""
    return _evidence(decision), min((reason.until_s for reason in decision.reasons), default=None)


def _past(session: NodeRemediation | None) -> tuple[float, tuple[float, ...]]:
    """Return until when findings are cleared, and when the node was quarantined in sessions that have ended."""
    if session is None:
        return 0.0, ()
    history = session.status.history
    released = max((step.time.timestamp() for step in history if step.event == "Released"), default=0.0)
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
    found = dict.fromkeys(each for reason in decision.reasons for each in reason.findings)
    # Sorted() is stable: equal times keep the order of the reasons.
    findings = sorted(found, key=lambda each: each.last_s)
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
