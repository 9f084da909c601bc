"""Admission webhooks that slow down requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.api.finding import Cost, Culprit, Finding, Fix, Growth, Measure, Severity, cost
from muster.doctor.evidence import Evidence
from muster.doctor.parts.webhooks import Webhook, Webhooks
from muster.doctor.rule import Rule

FAMILY: Final = "apiserver_admission_webhook_admission_duration_seconds"
SLOW_S: Final = 1.0
"""Kubernetes' objective for a whole call on one object is 1 s (kubernetes/community, sig-scalability slos)."""


def _find(evidence: Evidence) -> Iterator[Finding]:
    hooks = {hook.name: hook for hook in (evidence.part(Webhooks) or Webhooks()).items}
    for (name,), seen in sorted(evidence.histograms(FAMILY, ("name",)).items()):
        if seen.count < 1 or seen.mean < SLOW_S:
            continue
        yield Finding(
            id="webhook-slow",
            severity=Severity.ERROR,
            title=f"Webhook {name} takes {seen.mean:.1f} s a request; each request that it sees waits for it.",
            who=(_culprit(name, hooks.get(name)),),
            evidence=(
                Measure("mean time of a call", seen.mean, "s", FAMILY),
                Measure("calls in the window", seen.count, "requests", FAMILY),
            ),
            costs=(_waiting(name, evidence),),
            fix=_fix(hooks.get(name)),
        )


def _waiting(name: str, evidence: Evidence) -> Cost:
    today = sum(rate for labels, rate in evidence.rates(f"{FAMILY}_sum") if labels.get("name") == name)
    return cost("requests that wait for it at any moment", "requests", today, Growth.PER_NODE, evidence.scale)


def _culprit(name: str, hook: Webhook | None) -> Culprit:
    return Culprit(hook.configuration_kind, hook.configuration) if hook is not None else Culprit("Webhook", name)


def _fix(hook: Webhook | None) -> Fix:
    summary = "Repair or scale its backend. Until then, let the API server wait less."
    if hook is None:
        return Fix(summary)
    patch = f'[{{"op":"add","path":"/webhooks/{hook.index}/timeoutSeconds","value":1}}]'
    return Fix(
        summary,
        (f"kubectl patch {hook.configuration_kind.lower()} {hook.configuration} --type=json -p '{patch}'",),
    )


RULE: Final = Rule("webhook_latency", frozenset({FAMILY}), _find)
