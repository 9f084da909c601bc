"""Requests that API Priority and Fairness rejects or lets wait, by flow and client."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from muster.api.finding import Culprit, Finding, Fix, Measure, Severity, cost
from muster.doctor.evidence import Evidence
from muster.doctor.parts.workloads import busiest, clients_growth
from muster.doctor.rule import Rule

REJECTED: Final = "apiserver_flowcontrol_rejected_requests_total"
DISPATCHED: Final = "apiserver_flowcontrol_dispatched_requests_total"
WAIT: Final = "apiserver_flowcontrol_request_wait_duration_seconds"
REQUESTS: Final = "apiserver_request_total"
WAIT_S: Final = 1.0
_WAITED_LEAST: Final = 20
"""So many requests waited that it is not the hiccup of one moment."""


def _find(evidence: Evidence) -> Iterator[Finding]:
    rejected = _by_flow(evidence, REJECTED)
    dispatched = _by_flow(evidence, DISPATCHED)
    for (flow, level), rate in sorted(rejected.items(), key=lambda entry: -entry[1]):
        if rate > 0:
            yield _rejected(evidence, flow, level, rate, dispatched.get((flow, level), 0.0))
    if not rejected:
        yield from _refused(evidence)
    for (flow, level), waited in sorted(evidence.histograms(WAIT, ("flow_schema", "priority_level")).items()):
        if waited.above(WAIT_S) >= _WAITED_LEAST and not rejected.get((flow, level)):
            users = _users(evidence, flow)
            yield Finding(
                id="requests-queued",
                severity=Severity.WARNING,
                title=f"Requests of flow {flow} wait for more than {WAIT_S:g} s before the API server starts them.",
                who=(*users, Culprit("FlowSchema", flow)),
                evidence=(
                    Measure(f"requests that waited longer than {WAIT_S:g} s", waited.above(WAIT_S), "requests", WAIT),
                    Measure("mean wait", waited.mean, "s", WAIT),
                ),
                costs=(cost("time spent waiting", "s", waited.sum, clients_growth(users), evidence.scale),),
                fix=_fix(flow, level),
            )


def _users(evidence: Evidence, flow: str) -> tuple[Culprit, ...]:
    return busiest(evidence, lambda use: use.flow == flow)


def _by_flow(evidence: Evidence, name: str) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = defaultdict(float)
    for labels, rate in evidence.rates(name):
        found[labels.get("flow_schema", ""), labels.get("priority_level", "")] += rate
    return found


def _rejected(evidence: Evidence, flow: str, level: str, rate: float, dispatched: float) -> Finding:
    users = _users(evidence, flow)
    return Finding(
        id="requests-rejected",
        severity=Severity.ERROR,
        title=f"The API server rejects {rate:.3g} requests/s of flow {flow} (priority level {level}) with 429.",
        who=(*users, Culprit("FlowSchema", flow)),
        evidence=(
            Measure("rejected requests", rate, "requests/s", REJECTED),
            Measure("share of the flow's requests", 100 * rate / (rate + dispatched), "%", DISPATCHED),
        ),
        costs=(cost("rejected requests", "requests/s", rate, clients_growth(users), evidence.scale),),
        fix=_fix(flow, level),
    )


def _fix(flow: str, level: str) -> Fix:
    return Fix(
        "Let the first client named above list less often, in pages or from a cache. If it cannot be changed now, "
        "limit it with a FlowSchema of its own.",
        (
            f"kubectl get flowschema {flow} -o yaml",
            f"kubectl get prioritylevelconfiguration {level} -o yaml",
        ),
    )


def _refused(evidence: Evidence) -> Iterator[Finding]:
    """Find answers with 429 where the metrics of flows are missing: older versions, or APF is switched off.

    An eviction that a PodDisruptionBudget forbids has this code too.
    """
    if evidence.has(DISPATCHED):
        return
    rate = sum(
        rate
        for labels, rate in evidence.rates(REQUESTS)
        if labels.get("code") == "429" and labels.get("subresource") != "eviction"
    )
    if rate > 0:
        yield Finding(
            id="requests-rejected",
            severity=Severity.ERROR,
            title=f"The API server rejects {rate:.3g} requests/s with 429.",
            evidence=(Measure("rejected requests", rate, "requests/s", REQUESTS),),
            costs=(cost("rejected requests", "requests/s", rate, clients_growth(()), evidence.scale),),
            fix=Fix("Enable API Priority and Fairness, which shows and limits the flow that causes it."),
        )


RULE: Final = Rule(
    "overload",
    frozenset({REJECTED, DISPATCHED, WAIT, REQUESTS}),
    _find,
    needs=(("requests that are rejected or wait", (DISPATCHED, REQUESTS)),),
)
