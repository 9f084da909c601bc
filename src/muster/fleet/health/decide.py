"""Findings of one node and its policy in, what to do about it out. Pure; the order of findings means nothing.

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
    """What the node has been through."""

    cleared_s: float = 0.0
    """When it last passed its tests: what was last seen before needs something new to count again. 0: never."""
    remediations_s: tuple[float, ...] = ()
    """When it was remediated."""


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One thing the policy says of these findings."""

    action: Action
    fault: Fault
    rule: str
    """A rule's name, or CHECK/CODE."""
    where: str
    """FILE:LINE of the policy."""
    why: str
    until_s: float
    """When it stops counting if nothing new is seen."""
    findings: tuple[Finding, ...]
    job: Job = ""
    test: int = 0
    known: bool = True


class Excused(msgspec.Struct, frozen=True, kw_only=True):
    """What did not count, and which rule explains it."""

    rule: str
    """What it would have counted for."""
    by: str
    finding: Finding


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about a node, and why."""

    action: Action = "none"
    fault: Fault = "unknown"
    job: Job = ""
    test: int = 0
    """The level of preflight that lets it back; 0: the usual one."""
    rule: str = ""
    where: str = ""
    why: str = ""
    until_s: float | None = None
    """When nothing asks for the action any more, if nothing new is seen."""
    unknown: tuple[str, ...] = ()
    """CHECK/CODE of what the policy does not know: to be said aloud."""
    reasons: tuple[Reason, ...] = ()
    """All of them, the most serious first."""
    excused: tuple[Excused, ...] = ()


_REMEDIATED_FROM: Final = RANK["quarantine"]


def decide(findings: Iterable[Finding], history: History, policy: Policy, now_s: float) -> Decision:
    """Say what is to be done about a node with these findings.

    Args:
        findings: of this node; findings from the future count as of now.
        history: of this node.
        policy: of this node's pool.
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
    """Sorts the most serious first; of equals the one that was seen first, so that the deciding line stays the same."""
    return (
        -RANK[reason.action], -FAULTS.index(reason.fault), min(finding.first_s for finding in reason.findings),
        reason.rule, _order(reason.findings[0]),
    )  # fmt: skip


def _of_code(
    finding: Finding, history: History, policy: Policy, now_s: float, away: Mapping[str, set[Finding]]
) -> Iterable[Reason]:
    """What the finding means by itself."""
    name, entry, known = policy.entry(finding.check, finding.code)
    until_s = finding.last_s + entry.keep_s
    if until_s < now_s or finding.last_s <= history.cleared_s or finding in away.get(name, ()):
        return
    yield Reason(
        action=entry.action, fault=entry.fault, job=entry.job, test=entry.test, rule=name, where=entry.where,
        why=entry.what, until_s=until_s, findings=(finding,), known=known,
    )  # fmt: skip


def _taken(rule: Rule, findings: Sequence[Finding], policy: Policy, now_s: float) -> list[Finding]:
    """The findings that a rule is about."""
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
    """Those that have another finding beside them."""
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
    """What the rules that excuse take from others: only where they themselves hold."""
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
    """Yield each group of findings for which the rule holds, and until when it does."""
    groups: dict[str, list[Finding]] = {}
    for finding in _taken(rule, findings, policy, now_s):
        groups.setdefault(finding.component if rule.per == "component" else "", []).append(finding)
    for group in groups.values():
        newest = sorted(group, key=lambda finding: finding.last_s, reverse=True)
        enough = max(_enough(rule, newest))
        if enough <= len(newest):
            yield tuple(group), newest[enough - 1].last_s + rule.within_s


def _enough(rule: Rule, newest: Sequence[Finding]) -> Iterable[int]:
    """How many of the newest each condition needs; more than there are where it does not hold."""
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
    """A node that was remediated so often is not remediated once more."""
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
