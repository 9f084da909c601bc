"""Clients that list whole collections again and again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from muster.api.finding import Culprit, Finding, Fix, Growth, Measure, Severity, cost
from muster.doctor.evidence import Evidence
from muster.doctor.growing import objects_growth, product, resource_name
from muster.doctor.parts.requests import Sampled
from muster.doctor.parts.workloads import busiest, clients_growth
from muster.doctor.rule import Rule
from muster.doctor.rules.logged import logged

SIZES: Final = "apiserver_response_sizes"
CONSISTENT: Final = "apiserver_watch_cache_consistent_read_total"
LISTS_LEAST: Final = 0.5
"""Lists of a whole collection per second. Informers list once, and then watch."""
TODAY_BYTES, PLANNED_BYTES = 10 * 2**20, 10 * 2**20
"""Bytes of lists per second that are an error today, and a warning at the planned size."""


def _find(evidence: Evidence) -> Iterator[Finding]:
    counts, sizes = _by_resource(evidence, f"{SIZES}_count"), _by_resource(evidence, f"{SIZES}_sum")
    for (group, resource), size in sorted(sizes.items(), key=lambda entry: -entry[1]):
        count = counts.get((group, resource), 0.0)
        if count < LISTS_LEAST:
            continue
        users = _users(evidence, group, resource)
        name = resource_name({"group": group, "resource": resource})
        growth = product(objects_growth(name), clients_growth(users))
        if size >= TODAY_BYTES or evidence.scale.at_plan(size, growth) >= PLANNED_BYTES:
            yield _finding(evidence, name, count, size, users, growth)


def _by_resource(evidence: Evidence, name: str) -> dict[tuple[str, str], float]:
    """Return rates of lists in all namespaces, by group and resource."""
    found: dict[tuple[str, str], float] = defaultdict(float)
    for labels, rate in evidence.rates(name):
        if labels.get("verb") == "LIST" and labels.get("scope") == "cluster":
            found[labels.get("group", ""), labels.get("resource", "")] += rate
    return found


def _users(evidence: Evidence, group: str, resource: str) -> tuple[Culprit, ...]:
    name = resource_name({"group": group, "resource": resource})
    return logged(
        evidence,
        lambda usage: (usage.shape.verb, usage.shape.scope, usage.shape.resource) == ("list", "all", name),
        lambda usage: usage.rate,
    ) or busiest(evidence, lambda use: (use.verb, use.group, use.resource) == ("list", group, resource))


def _finding(
    evidence: Evidence, name: str, count: float, size: float, users: Sequence[Culprit], growth: Growth
) -> Finding:
    who = f"{users[0].kind} {users[0].name}" if users else "A client"
    measures = [
        Measure("lists in all namespaces", count, "requests/s", SIZES),
        Measure("size of an answer", size / count, "bytes", SIZES),
    ]
    newest = sum(rate for labels, rate in evidence.rates(CONSISTENT) if resource_name(labels) == name)
    if newest > 0:
        measures.append(
            Measure('lists that ask for the newest state (resourceVersion "")', newest, "requests/s", CONSISTENT)
        )
    summary = (
        'Use an informer: it lists once with resourceVersion "0" and then watches. If the program must list, let it '
        "read pages (limit=500), or through the read cache."
    )
    if not users:
        why = "no list was running in a sample" if evidence.part(Sampled) else "samples of requests cannot be read"
        summary += f" Who it is was not seen ({why}); an audit log names it: {_AUDIT}."
    return Finding(
        id="lists-unlimited",
        severity=Severity.ERROR if size >= TODAY_BYTES else Severity.WARNING,
        title=f"{who} lists all {name} again and again: {count:.3g} times a second.",
        who=tuple(users),
        evidence=tuple(measures),
        costs=(cost("bytes of lists", "bytes/s", size, growth, evidence.scale),),
        fix=Fix(summary),
    )


_AUDIT: Final = "muster doctor --audit-log FILE"

RULE: Final = Rule("lists", frozenset({SIZES, CONSISTENT}), _find, needs=(("sizes of lists", (f"{SIZES}_count",)),))
