"""Floods of Events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from muster.api.finding import Cost, Culprit, Finding, Fix, Growth, Measure, Severity, cost
from muster.doctor.evidence import Evidence
from muster.doctor.parts.workloads import busiest
from muster.doctor.parts.writers import EventWriters
from muster.doctor.rule import Rule

REQUESTS: Final = "apiserver_request_total"
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "APPLY"})
BASE_RATE, NODE_RATE = 20.0, 0.1
"""Writes of Events per second that any cluster may have, and more for each node."""
TTL_S: Final = 3600.0
"""kube-apiserver keeps Events for an hour by default (--event-ttl)."""
EVENT_BYTES: Final = 900.0
"""Size of an Event if none could be measured."""
_SHARE: Final = 0.2


def written(evidence: Evidence) -> float:
    """Return writes of Events per second."""
    return sum(
        rate
        for labels, rate in evidence.rates(REQUESTS)
        if labels.get("resource") == "events" and labels.get("verb") in _WRITES
    )


def usual(nodes: int) -> float:
    """Return writes of Events per second that are usual in a cluster of this size."""
    return BASE_RATE + NODE_RATE * nodes


def _find(evidence: Evidence) -> Iterator[Finding]:
    rate, most = written(evidence), usual(evidence.scale.nodes)
    if not evidence.scale.known or rate <= most:
        return
    writers = evidence.part(EventWriters)
    sources = _sources(writers)
    users = busiest(evidence, lambda use: use.resource == "events" and use.verb in ("create", "update", "patch"))
    growth = Growth.PER_NODE if any(each.name.startswith("kubelet") for each in sources) else Growth.CONSTANT
    if users and users[0].kind == "DaemonSet":
        growth = Growth.PER_NODE
    size = writers.size_bytes if writers is not None and writers.size_bytes else EVENT_BYTES
    stored = rate * TTL_S * size
    who = (*users, *sources)
    named = f"{who[0].kind} {who[0].name}" if who else "A client"
    yield Finding(
        id="events-flood",
        severity=Severity.ERROR,
        title=f"{named} floods the API server with Events: {rate:,.0f} writes/s, where {most:,.0f} are usual.",
        who=who,
        evidence=(
            Measure("writes of Events", rate, "requests/s", REQUESTS),
            Measure("size of an Event", size, "bytes", "list of events, limit 20"),
        ),
        costs=(
            cost("writes of Events", "requests/s", rate, growth, evidence.scale),
            Cost("Events kept for an hour", "bytes", stored, evidence.scale.at_plan(stored, growth), growth),
        ),
        fix=Fix(
            "Stop or repair the source: client-go's recorder with its spam filter merges equal Events. Admission "
            "plugin EventRateLimit limits each source, and Events can have an etcd of their own.",
            ("kubectl get events -A --sort-by=.lastTimestamp | tail -20",),
        ),
    )


def _sources(writers: EventWriters | None) -> tuple[Culprit, ...]:
    if writers is None or not writers.counts:
        return ()
    whole = sum(writers.counts.values())
    ranked = sorted(writers.counts.items(), key=lambda entry: (-entry[1], entry[0].component))
    return tuple(
        Culprit("EventSource", f"{source.component} in namespace {source.namespace}", count / whole)
        for source, count in ranked[:3]
        if count >= _SHARE * whole
    )


RULE: Final = Rule("events", frozenset({REQUESTS}), _find, needs=(("writes of Events", (REQUESTS,)),))
