"""Aggregated APIs that do not answer, and conversion webhooks that slow down or stop reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from muster.api.finding import Culprit, Finding, Fix, Growth, Measure, Severity, cost
from muster.doctor.evidence import Evidence
from muster.doctor.growing import objects_growth
from muster.doctor.parts.extensions import Extensions
from muster.doctor.rule import Rule

CONVERSIONS: Final = "apiserver_crd_conversion_webhook_duration_seconds"
REQUESTS: Final = "apiserver_request_total"
SLOW_S: Final = 1.0


def _find(evidence: Evidence) -> Iterator[Finding]:
    extensions = evidence.part(Extensions) or Extensions()
    for api in extensions.aggregated:
        if not api.available:
            yield _unavailable(evidence, api.name, api.service, api.reason)
    services = {each.crd: each.service for each in extensions.conversions}
    for crd, service in sorted(services.items()):
        if service and extensions.ready.get(service) == 0:
            yield _conversion(
                evidence,
                "conversion-down",
                crd,
                f"The conversion webhook of {crd} has no ready backend, so reads of its objects fail.",
                Measure(f"ready endpoints of Service {service}", 0, "", "EndpointSlices"),
            )
    slow = evidence.histograms(CONVERSIONS, ("crd_name",))
    failed = evidence.histograms(CONVERSIONS, ("crd_name",), lambda labels: labels.get("succeeded") == "false")
    for (crd,), seen in sorted(slow.items()):
        failures = failed[(crd,)].count if (crd,) in failed else 0.0
        if services.get(crd) and extensions.ready.get(services[crd]) == 0:
            continue
        if failures >= 1:
            title = f"The conversion webhook of {crd} fails, so reads of its objects fail."
            measure = Measure("failed conversions in the window", failures, "requests", CONVERSIONS)
            yield _conversion(evidence, "conversion-failing", crd, title, measure)
        elif seen.count >= 1 and seen.mean >= SLOW_S:
            title = f"The conversion webhook of {crd} takes {seen.mean:.1f} s; each read of its objects waits for it."
            measure = Measure("mean time of a conversion", seen.mean, "s", CONVERSIONS)
            yield _conversion(evidence, "conversion-slow", crd, title, measure)


def _unavailable(evidence: Evidence, name: str, service: str, reason: str) -> Finding:
    group = name.partition(".")[2]
    rates: dict[str, float] = defaultdict(float)
    for labels, rate in evidence.rates(REQUESTS):
        rates[labels.get("group", "")] += rate
    namespace, _, bare = service.partition("/")
    return Finding(
        id="api-unavailable",
        severity=Severity.ERROR,
        title=f"The API {name} is unavailable ({reason or 'no reason given'}), so namespaces cannot be deleted.",
        who=(Culprit("APIService", name), Culprit("Service", service)),
        evidence=(Measure("condition Available is False", 1, "", f"APIService {name}"),),
        costs=(cost("requests for it", "requests/s", rates[group], Growth.CONSTANT, evidence.scale),),
        fix=Fix(
            "Repair the server behind it, or delete the APIService if the server was removed.",
            (
                f"kubectl get endpointslices -n {namespace} -l kubernetes.io/service-name={bare}",
                f"kubectl delete apiservice {name}",
            ),
        ),
    )


def _conversion(evidence: Evidence, id_: str, crd: str, title: str, measure: Measure) -> Finding:
    plural, _, group = crd.partition(".")
    reads = sum(
        rate
        for labels, rate in evidence.rates(REQUESTS)
        if labels.get("group") == group and labels.get("resource") == plural
    )
    return Finding(
        id=id_,
        severity=Severity.ERROR,
        title=title,
        who=(Culprit("CustomResourceDefinition", crd),),
        evidence=(measure,),
        costs=(cost("requests for its objects", "requests/s", reads, objects_growth(crd), evidence.scale),),
        fix=Fix(
            "Repair its backend. Then migrate stored objects to one version, so that reads need no conversion.",
            (f"kubectl get customresourcedefinition {crd} -o jsonpath='{{.spec.conversion}}'",),
        ),
    )


RULE: Final = Rule("extensions", frozenset({CONVERSIONS, REQUESTS}), _find)
