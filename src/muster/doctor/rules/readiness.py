"""API servers that are not ready."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.api.finding import Culprit, Finding, Fix, Growth, Measure, Severity, cost
from muster.doctor.evidence import Evidence
from muster.doctor.parts.readiness import Readiness
from muster.doctor.rule import Rule


def _find(evidence: Evidence) -> Iterator[Finding]:
    readiness = evidence.part(Readiness)
    for address, checks in sorted(readiness.failed.items()) if readiness is not None else ():
        if checks:
            yield Finding(
                id="not-ready",
                severity=Severity.ERROR,
                title=f"The API server at {address} is not ready: {', '.join(checks)} failed.",
                who=tuple(Culprit("Check", check) for check in checks),
                evidence=(Measure("failed checks", len(checks), "", "/readyz?verbose"),),
                costs=(cost("API servers out of service", "servers", 1, Growth.CONSTANT, evidence.scale),),
                fix=Fix(
                    "A load balancer sends no requests to this server. If the check etcd failed, look at etcd first.",
                    ("kubectl get --raw '/readyz?verbose'",),
                ),
            )


RULE: Final = Rule("readiness", frozenset(), _find)
