"""Decides what to do about a node from its findings and policy: a pure function; the order of findings is ignored.

findings ─► excused? ─► each code's entry ─┐
                   └──► rules over windows ─┴─► reasons ─► the most serious one decides
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from muster.fleet.health.finding import Finding
from muster.fleet.health.policy import FAULTS, RANK, Action, Beside, Fault, Job, Policy, Rule, is_one_of


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The past of a node."""

    cleared_s: float = 0.0
    """When it last passed its tests. Findings last seen before that do not count. 0: never."""
    remediations_s: tuple[float, ...] = ()
    """Times of its remediations."""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One result of the policy for these findings."""

    action: Action
    fault: Fault
    rule: str
    """The name of a rule, or CHECK/CODE."""
    where: str
    """FILE:LINE of the policy."""
    why: str
    until_s: float
    """When it no longer counts, if nothing new is seen."""
    findings: tuple[Finding, ...]
    job: Job = ""
    test: int = 0
    known: bool = True


class Excused(msgspec.Struct, frozen=True, kw_only=True):
    """A finding that did not count, and the rule that explains it."""

    rule: str
    """The rule or code for which it would have counted."""
    by: str
    finding: Finding


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The action for a node, and the reasons."""

    action: Action = "none"
    fault: Fault = "unknown"
    job: Job = ""
    test: int = 0
    """The preflight level that ends the quarantine; 0: the usual one."""
    rule: str = ""
    where: str = ""
    why: str = ""
    until_s: float | None = None
    """When no reason asks for the action any more, if nothing new is seen."""
    unknown: tuple[str, ...] = ()
    """CHECK/CODE of findings that the policy does not know. Users are notified of them."""
    reasons: tuple[Reason, ...] = ()
    """All reasons, the most serious first."""
    excused: tuple[Excused, ...] = ()


_REMEDIATED_FROM: Final = RANK["quarantine"]


def decide(findings: Iterable[Finding], history: History, policy: Policy, now_s: float) -> Decision:
    """Decide what to do about a node with these findings.

    Args:
        findings: of this node; findings with a future time count as seen now.
        history: the past of this node.
        policy: the policy of this node's pool.
        now_s: Unix seconds.
    """
    seen = sorted(set(findings), key=_order)
    excused = _excuses(seen, policy, now_s)
    away: dict[str, set[Finding]] = {}
    for each in excused:
        away.setdefault(each.rule, set()).add(each.finding)
    reasons = [reason for finding in seen for reason in _of_code(finding, history, policy, now_s, away)]
    for rule in policy.rules:
        if not rule.remediations:
            left = [finding for finding in seen if finding not in away[rule.name]] if rule.name in away else seen
            reasons += _of_rule(rule, left, history, policy, now_s)
    for rule in policy.rules:
        if rule.remediations:
            reasons += _of_offender(rule, reasons, history, now_s)
    if not reasons:
        return Decision(excused=excused)
    reasons.sort(key=_seriousness)
    first = reasons[0]
    unknown = {f"{f.check}/{f.code}" for reason in reasons if not reason.known for f in reason.findings}
    return Decision(
        action=first.action,
        fault=first.fault,
        job="restart-app" if any(reason.job for reason in reasons) else "",
        test=max(reason.test for reason in reasons),
        rule=first.rule,
        where=first.where,
        why=first.why,
        until_s=max(reason.until_s for reason in reasons if reason.action == first.action),
        unknown=tuple(sorted(unknown)),
        reasons=tuple(reasons),
        excused=excused,
    )


def _order(finding: Finding) -> tuple[float, str, str, str, float, int, str]:
    return (
        finding.first_s, finding.check, finding.component, finding.code, finding.last_s, finding.count, finding.message,
    )  # fmt: skip


def _seriousness(reason: Reason) -> tuple[int, int, float, str, tuple[float, str, str, str, float, int, str]]:
    """Return a sort key: the most serious first, then the first seen, so that the deciding line does not change."""
    return (
        -RANK[reason.action], -FAULTS.index(reason.fault), min(finding.first_s for finding in reason.findings),
        reason.rule, _order(reason.findings[0]),
    )  # fmt: skip


def _of_code(
    finding: Finding, history: History, policy: Policy, now_s: float, away: Mapping[str, set[Finding]]
) -> Iterable[Reason]:
    """Yield the reason that a finding gives by its own code."""
    name, entry, known = policy.entry(finding.check, finding.code)
    until_s = finding.last_s + entry.keep_s
    if until_s < now_s or finding.last_s <= history.cleared_s or finding in away.get(name, ()):
        return
    yield Reason(
        action=entry.action, fault=entry.fault, job=entry.job, test=entry.test, rule=name, where=entry.where,
        why=entry.what, until_s=until_s, findings=(finding,), known=known,
    )  # fmt: skip


def _taken(rule: Rule, findings: Sequence[Finding], policy: Policy, now_s: float) -> list[Finding]:
    """Return the findings to which a rule applies."""
    of_check = [finding for finding in findings if finding.check == rule.check]
    taken = [
        finding
        for finding in of_check
        if finding.last_s + rule.within_s >= now_s
        and (not rule.codes or is_one_of(finding.code, rule.codes))
        and (not rule.fatal or policy.entry(finding.check, finding.code)[1].fatal)
    ]
    return taken if rule.beside is None or not taken else _beside(rule, rule.beside, taken, of_check)


def _beside(rule: Rule, beside: Beside, taken: Sequence[Finding], of_check: Sequence[Finding]) -> list[Finding]:
    """Return the findings that have the other finding beside them."""
    if beside.codes:
        others = [other for other in of_check if is_one_of(other.code, beside.codes)]
    else:
        others = [other for other in of_check if not is_one_of(other.code, rule.codes)]
    same = beside.component == "same"
    return [
        finding
        for finding in taken
        if any(
            (other.component == finding.component) == same
            and other.first_s - finding.last_s <= beside.seconds
            and finding.first_s - other.last_s <= beside.seconds
            for other in others
        )
    ]


def _excuses(findings: Sequence[Finding], policy: Policy, now_s: float) -> tuple[Excused, ...]:
    """Return the findings that excusing rules take away from other rules. A rule excuses only where it holds itself."""
    excused = set()
    for rule in policy.rules:
        if not rule.excuses:
            continue
        for group, _ in _holds(rule, findings, policy, now_s):
            excused |= {Excused(rule=name, by=rule.name, finding=finding) for name in rule.excuses for finding in group}
    return tuple(sorted(excused, key=lambda each: (_order(each.finding), each.rule, each.by)))


def _holds(
    rule: Rule, findings: Sequence[Finding], policy: Policy, now_s: float
) -> Iterable[tuple[tuple[Finding, ...], float]]:
    """Yield each group of findings for which the rule holds, and until when it holds."""
    groups: dict[str, list[Finding]] = {}
    for finding in _taken(rule, findings, policy, now_s):
        groups.setdefault(finding.component if rule.per == "component" else "", []).append(finding)
    for group in groups.values():
        newest = sorted(group, key=lambda finding: finding.last_s, reverse=True)
        enough = max(_enough(rule, newest))
        if enough <= len(newest):
            yield tuple(group), newest[enough - 1].last_s + rule.within_s


def _enough(rule: Rule, newest: Sequence[Finding]) -> Iterable[int]:
    """Yield for each condition how many of the newest findings it needs; more than there are if it does not hold."""
    yield max(1, rule.incidents)
    events, components = 0, set[str]()
    needs_events, needs_components = len(newest) + 1, len(newest) + 1
    for number, finding in enumerate(newest, 1):
        events += finding.count
        components.add(finding.component)
        if events >= rule.events:
            needs_events = min(needs_events, number)
        if len(components) >= rule.components:
            needs_components = min(needs_components, number)
    yield needs_events
    yield needs_components


def _of_rule(
    rule: Rule, findings: Sequence[Finding], history: History, policy: Policy, now_s: float
) -> Iterable[Reason]:
    for group, until_s in _holds(rule, findings, policy, now_s):
        if max(finding.last_s for finding in group) > history.cleared_s:
            yield Reason(
                action=rule.action, fault=rule.fault, job=rule.job, test=rule.test, rule=rule.name, where=rule.where,
                why=rule.why, until_s=until_s, findings=group,
            )  # fmt: skip


def _of_offender(rule: Rule, reasons: Sequence[Reason], history: History, now_s: float) -> Iterable[Reason]:
    """Yield a reason to escalate a node that was remediated too often."""
    newest = sorted((time_s for time_s in history.remediations_s if time_s + rule.within_s >= now_s), reverse=True)
    again = [reason for reason in reasons if RANK[reason.action] >= _REMEDIATED_FROM]
    if len(newest) < rule.remediations or not again:
        return
    findings = sorted({finding for reason in again for finding in reason.findings}, key=_order)
    until_s = min(newest[rule.remediations - 1] + rule.within_s, max(reason.until_s for reason in again))
    yield Reason(
        action=rule.action, fault=rule.fault, job=rule.job, test=rule.test, rule=rule.name, where=rule.where,
        why=rule.why, until_s=until_s, findings=tuple(findings),
    )  # fmt: skip
