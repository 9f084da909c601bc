"""Admission webhooks that cannot be called: their requests are refused, or pass unchecked."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from muster.api.finding import Culprit, Finding, Fix, Growth, Measure, Severity, cost
from muster.doctor.evidence import Evidence
from muster.doctor.parts.webhooks import Webhook, Webhooks
from muster.doctor.rule import Rule
from muster.doctor.samples import Labels

REJECTIONS: Final = "apiserver_admission_webhook_rejection_count"
FAIL_OPEN: Final = "apiserver_admission_webhook_fail_open_count"


def is_failed_call(labels: Labels) -> bool:
    """Returns whether a rejection is a failed call, and not the webhook's own decision."""
    return labels.get("error_type") == "calling_webhook_error"


def _find(evidence: Evidence) -> Iterator[Finding]:
    hooks = {hook.name: hook for hook in (evidence.part(Webhooks) or Webhooks()).items}
    refused: dict[str, float] = defaultdict(float)
    passed: dict[str, float] = defaultdict(float)
    for labels, rate in evidence.rates(REJECTIONS):
        if is_failed_call(labels):
            refused[labels.get("name", "")] += rate
    for labels, rate in evidence.rates(FAIL_OPEN):
        passed[labels.get("name", "")] += rate
    for name, rate in sorted(refused.items()):
        if rate > 0:
            yield _finding(evidence, name, hooks.get(name), rate, "refuses", REJECTIONS, Severity.ERROR)
    for name, rate in sorted(passed.items()):
        if rate > 0 and not refused.get(name):
            yield _finding(evidence, name, hooks.get(name), rate, "does not check", FAIL_OPEN, Severity.WARNING)


def _finding(
    evidence: Evidence, name: str, hook: Webhook | None, rate: float, does: str, source: str, severity: Severity
) -> Finding:
    commands: tuple[str, ...] = ()
    if hook is not None:
        commands = (f"kubectl get {hook.configuration_kind.lower()} {hook.configuration} -o yaml",)
        if hook.service:
            namespace, _, service = hook.service.partition("/")
            commands += (f"kubectl get endpointslices -n {namespace} -l kubernetes.io/service-name={service}",)
    return Finding(
        id="webhook-failing",
        severity=severity,
        title=f"Webhook {name} cannot be called, so the API server {does} {rate:.3g} requests/s.",
        who=(Culprit(hook.configuration_kind, hook.configuration) if hook else Culprit("Webhook", name),),
        evidence=(Measure("failed calls", rate, "requests/s", source),),
        costs=(cost("requests without its check", "requests/s", rate, Growth.PER_NODE, evidence.scale),),
        fix=Fix("Repair its backend, its certificate or its network path. If that takes long, delete it.", commands),
    )


RULE: Final = Rule("webhook_failures", frozenset({REJECTIONS, FAIL_OPEN}), _find)
