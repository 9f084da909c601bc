"""Finds workloads whose requests cost too much, or will at the planned size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from muster.api.finding import Cost as FindingCost
from muster.api.finding import Culprit, Finding, Fix, Growth, Measure, Severity
from muster.doctor.costs.budget import DEFAULT, excesses
from muster.doctor.costs.collect import RequestUsage
from muster.doctor.costs.cost import UNITS, CallerCost, Cost, Line, Population, by_caller
from muster.doctor.costs.growth import SPREAD_MIN, fit, growth_of, words
from muster.doctor.costs.population import FAMILIES, OBJECTS, OBJECTS_OLD, SIZES, population
from muster.doctor.costs.tally import WRITES
from muster.doctor.evidence import Evidence
from muster.doctor.rule import Rule

REFERENCE_NODES: Final = 7_500
"""Lists and gets are also judged at this size, even if a smaller one is planned.

A pattern that grows per node squared looks harmless on a small cluster. A telemetry service like that stopped a fleet
on 11 December 2024 after it had passed its tests on small clusters. OpenAI's largest published cluster has 7,500 nodes.
"""
_SHOWN_MIN: Final = 0.01
_JUDGED: Final = ("requests", "objects", "list_bytes", "etcd_reads")


def find_expensive(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each workload above the budget: now, at the planned size, or at the reference size."""
    usage = evidence.part(RequestUsage)
    if usage is None or not usage.observed.usages:
        return
    nodes = evidence.scale.nodes or usage.observed.kubelets or 1
    now = population(
        nodes,
        evidence.series(OBJECTS),
        evidence.series(OBJECTS_OLD),
        evidence.series(SIZES),
        usage.observed.changes,
        usage.counted,
    )
    for cost, reference in expensive(usage, now, evidence.scale.planned):
        yield _finding(cost, reference, usage, evidence)


def expensive(usage: RequestUsage, now: Population, planned: int) -> list[tuple[CallerCost, CallerCost]]:
    """Callers above the budget, each with its cost at the planned and at the reference size."""
    fits = {caller: fit(samples) for caller, samples in usage.observed.samples.items()}
    costs = by_caller(usage.observed.usages, now, now.at(max(planned, 1)), fits)
    largest = max(planned, REFERENCE_NODES)
    references = {cost.caller: cost for cost in by_caller(usage.observed.usages, now, now.at(largest), fits)}
    found = []
    for cost in costs:
        if cost.caller.system or cost.caller.kind == "Other":
            continue
        reference = references[cost.caller]
        judged = Cost(**{part: getattr(reference.planned, part) for part in _JUDGED})
        if excesses(cost.today) or excesses(cost.planned) or excesses(judged):
            found.append((cost, reference))
    return found


def _finding(cost: CallerCost, reference: CallerCost, usage: RequestUsage, evidence: Evidence) -> Finding:
    line, caller = reference.lines[0], cost.caller
    culprits = [Culprit(caller.kind, f"{caller.namespace}/{caller.name}" if caller.namespace else caller.name)]
    if caller.account and caller.kind != "ServiceAccount":
        culprits.append(Culprit("ServiceAccount", caller.account))
    return Finding(
        id="expensive-client",
        severity=Severity.ERROR if excesses(cost.today) else Severity.WARNING,
        title=(
            f"{caller.words} {line.usage.shape.words}; the cost grows {words(line.growth)}: "
            f"{_worst(reference)} at {max(evidence.scale.planned, REFERENCE_NODES):,} nodes."
        ),
        who=tuple(culprits),
        evidence=(
            Measure("requests in the log", line.usage.calls, "requests", usage.source),
            Measure("pods or nodes that send them", line.usage.instances, "", usage.source),
            Measure("interval of one of them", line.usage.instances / line.usage.rate, "s", usage.source)
            if line.usage.rate
            else Measure("requests of one of them when it starts", line.usage.startup, "requests", usage.source),
            *_at_reference(reference),
        ),
        costs=tuple(_costs(cost, evidence)),
        fix=fix_of(line),
    )


def _costs(cost: CallerCost, evidence: Evidence) -> Iterator[FindingCost]:
    factor = max(evidence.scale.planned, 1) / max(evidence.scale.nodes, 1)
    for part, (title, unit) in UNITS.items():
        today, planned = getattr(cost.today, part), getattr(cost.planned, part)
        if planned >= _SHOWN_MIN:
            yield FindingCost(title, unit, today, planned, _growth(today, planned, factor) or cost.growth)


def _growth(today: float, planned: float, factor: float) -> Growth | None:
    """The growth from one size to another that is `factor` times as large; None if that is too near."""
    if factor < SPREAD_MIN or not today:
        return None
    return growth_of(max(round(math.log(planned / today) / math.log(factor)), 0))


def _worst(reference: CallerCost) -> str:
    over = excesses(reference.planned) or excesses(reference.planned, Cost())
    worst = over[0]
    return f"{worst.cost:,.0f} {UNITS[worst.part][1] or worst.words}"


def _at_reference(reference: CallerCost) -> Iterator[Measure]:
    for each in excesses(reference.planned, DEFAULT):
        title, unit = UNITS[each.part]
        yield Measure(
            f"{title} at {REFERENCE_NODES:,} nodes; the budget is {each.limit:,.0f}", each.cost, unit, "computed"
        )


def fix_of(line: Line) -> Fix:
    """What the owner of the workload should change, by the most expensive kind of request."""
    shape, caller = line.usage.shape, line.usage.caller
    block = (f"muster doctor block {caller.account}",) if caller.account else ()
    if shape.verb == "list":
        what = (
            "Replace the repeated list by one watch (an informer) that starts with resourceVersion 0, and select only "
            "the objects of the own node (fieldSelector spec.nodeName). If every pod needs all objects, let one "
            "Deployment watch them and pass on the result, or send the reads to the read cache."
        )
    elif shape.verb == "watch":
        what = (
            "Select fewer objects: those of the own node, EndpointSlices instead of Endpoints, metadata only. "
            "Or send the watch to the read cache."
        )
    elif shape.verb == "get":
        what = "Replace the repeated gets by one watch with a selector that starts with resourceVersion 0."
    elif shape.verb in WRITES:
        what = "Write only if something has changed, less often, and to one object per node."
    else:
        what = "Ask the owner of this workload to send fewer requests."
    return Fix(what, block)


RULE: Final = Rule("expensive_client", FAMILIES, find_expensive)
