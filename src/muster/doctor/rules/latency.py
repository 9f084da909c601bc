"""Latency against Kubernetes' objectives: 1 s for calls on one object, 30 s for lists.

Source: kubernetes/community, sig-scalability/slos (API call latency). Time in webhooks and queues does not count, as in
the metric apiserver_request_sli_duration_seconds. Older versions call it slo, or have only the whole duration.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.api.finding import Cost, Culprit, Finding, Fix, Growth, Measure, Severity
from muster.doctor.evidence import Evidence
from muster.doctor.growing import objects_growth, resource_name
from muster.doctor.histogram import Histogram
from muster.doctor.parts.workloads import busiest
from muster.doctor.rule import Rule
from muster.doctor.samples import Labels

FAMILIES: Final = (
    "apiserver_request_sli_duration_seconds",
    "apiserver_request_slo_duration_seconds",
    "apiserver_request_duration_seconds",
)
ONE_S, LIST_S = 1.0, 30.0
_SLOW_LEAST: Final = 20
"""Slow requests in the window. Fewer may come from one pause of a busy machine."""
_SHARE: Final = 0.01
_BY: Final = ("group", "resource", "verb")
_LONG_VERBS: Final = frozenset({"WATCH", "WATCHLIST", "CONNECT", "PROXY"})
_LONG_SUBRESOURCES: Final = frozenset({"log", "exec", "attach", "portforward", "proxy"})
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "APPLY": "patch", "DELETE": "delete"}


def _counts(labels: Labels) -> bool:
    return bool(
        labels.get("resource")
        and labels.get("verb") not in _LONG_VERBS
        and labels.get("subresource") not in _LONG_SUBRESOURCES
    )


def _find(evidence: Evidence) -> Iterator[Finding]:
    family = next((name for name in FAMILIES if evidence.has(f"{name}_count")), "")
    if not family:
        return
    for (group, resource, verb), seen in sorted(evidence.histograms(family, _BY, _counts).items()):
        limit_s = LIST_S if verb in ("LIST", "DELETECOLLECTION") else ONE_S
        slow = seen.above(limit_s)
        if slow >= _SLOW_LEAST and slow >= _SHARE * seen.count:
            yield _finding(evidence, family, group, resource, verb, seen, limit_s)


def _finding(
    evidence: Evidence, family: str, group: str, resource: str, verb: str, seen: Histogram, limit_s: float
) -> Finding:
    name, slow = resource_name({"group": group, "resource": resource}), seen.above(limit_s)
    growth = objects_growth(name) if limit_s == LIST_S else Growth.PER_NODE
    rate = slow / evidence.window_s
    wanted = (_VERBS.get(verb, verb.lower()), group, resource)
    users = busiest(evidence, lambda use: (use.verb, use.group, use.resource) == wanted)
    return Finding(
        id="slow-requests",
        severity=Severity.ERROR,
        title=f"{100 * slow / seen.count:.0f}% of {verb} requests for {name} take longer than {limit_s:g} s.",
        who=(*users, Culprit("Resource", name)),
        evidence=(
            Measure(f"requests over {limit_s:g} s", slow, "requests", family),
            Measure("99th percentile, at least in this bucket", seen.quantile(0.99), "s", family),
        ),
        costs=(
            Cost("requests that miss the objective", "requests/s", rate, evidence.scale.at_plan(rate, growth), growth),
        ),
        fix=Fix(
            "Look at etcd and at the API server's CPU first: both slow down all resources. If only this resource is "
            "slow, make its objects smaller, or read it from a cache.",
            ("kubectl get --raw /metrics | grep etcd_request_duration_seconds_sum",),
        ),
    )


RULE: Final = Rule(
    "latency",
    frozenset(FAMILIES),
    _find,
    needs=(("latency of requests", tuple(f"{name}_count" for name in FAMILIES)),),
)
