"""Explains a decision as text: the action, the policy line that decided, the evidence, and other vendors' advice."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from muster.fleet.health.decide import Decision, Reason
from muster.fleet.health.finding import Finding
from muster.fleet.health.policy import ELSEWHERE, Action, Policy

_DONE: Final[dict[Action, str]] = {
    "none": "nothing is done",
    "observe": "it is watched",
    "condition": "the node gets a condition that names the problem",
    "quarantine": "no new pods are scheduled on the node, and it is tested when it is idle",
    "drain": "the node is emptied and tested",
    "reset-gpu": "the node is emptied, the GPU is reset, and the node is tested",
    "reboot": "the node is emptied, rebooted and tested",
    "replace": "the node is emptied and its machine replaced",
    "human": "the node is emptied and left to a person",
}
_CALENDAR_FROM_S: Final = 1e8
"""Smaller times are seconds since boot: they come from a log whose boot time is not known."""
_EVIDENCE_MAX: Final = 8


def lines(decision: Decision, policy: Policy) -> Iterator[str]:
    """Yield the explanation, line by line, for a terminal. `policy` is the policy that decided."""
    if not decision.reasons:
        yield "none: no finding counts at present"
    else:
        yield f"{decision.action} ({decision.fault} fault): {_DONE[decision.action]}"
        if decision.job:
            yield f"job: {decision.job}"
        if decision.test:
            yield f"trusted again after: preflight level {decision.test}"
    for code in decision.unknown:
        yield f"UNKNOWN: {code} is not in policy {policy.revision}; add it to the policy, or report it to the operator"
    for number, reason in enumerate(decision.reasons):
        yield from _reason("decided by" if number == 0 else f"also {reason.action}:", reason, policy)
    for each in decision.excused:
        yield f"not counted for {each.rule}: {_seen(each.finding)}, because rule {each.by} already accounts for it"


def _reason(beginning: str, reason: Reason, policy: Policy) -> Iterator[str]:
    yield f"{beginning} {reason.rule} ({reason.where}): {reason.why}; counts until {time_text(reason.until_s)}"
    for finding in reason.findings[:_EVIDENCE_MAX]:
        yield f"  {_seen(finding)}"
    if len(reason.findings) > _EVIDENCE_MAX:
        yield f"  and {len(reason.findings) - _EVIDENCE_MAX} more"
    opinions = policy.entry(reason.findings[0].check, reason.findings[0].code)[1].elsewhere if reason.findings else {}
    said = [f"{name} {opinions[name]}" for name in ELSEWHERE if name in opinions]
    if said and "/" in reason.rule:
        yield f"  elsewhere: {', '.join(said)}"


def _seen(finding: Finding) -> str:
    times = f", {finding.count:,} times" if finding.count > 1 else ""
    on = f" on {finding.component}" if finding.component else ""
    return f"{time_text(finding.first_s)} {finding.check} {finding.code}{on}{times}: {finding.message}".rstrip(": ")


def time_text(time_s: float) -> str:
    """Format a time for people: UTC, or seconds since boot if the date is not known."""
    if time_s < _CALENDAR_FROM_S:
        return f"{time_s:.3f}s"
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
