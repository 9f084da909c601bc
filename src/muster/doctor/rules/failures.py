"""Answers with a status of 5xx."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from muster.api.finding import Culprit, Finding, Fix, Growth, Measure, Severity, cost
from muster.doctor.etcd import space as etcd_space
from muster.doctor.evidence import Evidence
from muster.doctor.growing import resource_name
from muster.doctor.rule import Rule
from muster.doctor.rules.webhook_failures import REJECTIONS, is_failed_call

REQUESTS: Final = "apiserver_request_total"
_LEAST: Final = 10
"""Failures in the window; a few may have any reason, such as a client's timeout."""
_SHARE: Final = 0.01
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})


def _find(evidence: Evidence) -> Iterator[Finding]:
    failed: dict[tuple[str, str], float] = defaultdict(float)
    answered: dict[str, float] = defaultdict(float)
    written = 0.0
    for labels, rate in evidence.rates(REQUESTS):
        name = resource_name(labels) or labels.get("subresource", "")
        answered[name] += rate
        code = labels.get("code", "")
        if len(code) == 3 and code.startswith("5"):
            failed[name, code] += rate
            written += rate if labels.get("verb") in _WRITES else 0.0
    webhooks = sum(rate for labels, rate in evidence.rates(REJECTIONS) if is_failed_call(labels))
    if written and webhooks >= 0.5 * written:
        return  # the rule about webhooks names the one that failed
    if written and etcd_space.is_full(evidence):
        return  # the rule about etcd's space names it
    for (name, code), rate in sorted(failed.items(), key=lambda entry: -entry[1]):
        if rate * evidence.window_s >= _LEAST and rate >= _SHARE * answered[name]:
            yield Finding(
                id="server-errors",
                severity=Severity.ERROR,
                title=f"The API server answers {rate:.3g} requests/s for {name or 'other paths'} with {code}.",
                who=(Culprit("Resource", name),),
                evidence=(
                    Measure(f"answers with {code}", rate, "requests/s", REQUESTS),
                    Measure("share of this resource's requests", 100 * rate / answered[name], "%", REQUESTS),
                ),
                costs=(cost("failed requests", "requests/s", rate, Growth.PER_NODE, evidence.scale),),
                fix=Fix(
                    "Read the API server's log for these requests. 504 means that they ran into their timeout, and "
                    "503 that a server behind the API server does not answer.",
                    ("kubectl get --raw '/readyz?verbose'", "kubectl get apiservices"),
                ),
            )


RULE: Final = Rule(
    "failures",
    frozenset({REQUESTS, REJECTIONS, etcd_space.ERRORS, etcd_space.ETCD_REQUESTS}),
    _find,
    needs=(("answers with a status of 5xx", (REQUESTS,)),),
)
