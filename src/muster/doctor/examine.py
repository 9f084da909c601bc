"""Applies the rules to the evidence, and holds the report of `muster doctor`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from muster.api.finding import Finding, Scale, Severity, Unseen
from muster.api.reader import OwnCost
from muster.doctor.evidence import Evidence
from muster.doctor.growing import RESIDENT, planned_memory_bytes
from muster.doctor.rule import Rule
from muster.doctor.samples import Server

INFLIGHT: Final = "apiserver_current_inflight_requests"
REQUESTS: Final = "apiserver_request_total"
LONGRUNNING: Final = "apiserver_longrunning_requests"
FACTS: Final = frozenset({RESIDENT, INFLIGHT, REQUESTS, LONGRUNNING})
"""Metric families of `ServerFacts`."""


class ServerFacts(msgspec.Struct, frozen=True, rename="camel"):
    """Load of an API server; a number is None if the server does not report it.

    Attributes:
        address: where it was asked.
        memory_bytes: its resident memory.
        planned_memory_bytes: its memory at the planned size; None with too few nodes to say.
        inflight: requests that it executes now.
        requests_per_second: requests in the window.
        watches: open watches.
    """

    address: str
    memory_bytes: float | None
    planned_memory_bytes: float | None
    inflight: float | None
    requests_per_second: float | None
    watches: float | None


class Report(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The result of an examination. Scripts read its JSON form: never rename or remove a field.

    Attributes:
        version: version of the API server.
        nodes: nodes today; 0 also if this could not be read, and `unseen` says so.
        planned_nodes: nodes for which costs are planned.
        window_seconds: time between the two readings of the metrics.
        findings: errors first.
        unseen: what could not be examined.
        own_cost: what the doctor cost.
        servers: each API server that was read.
    """

    version: str
    nodes: int
    planned_nodes: int
    window_seconds: float
    findings: tuple[Finding, ...]
    unseen: tuple[Unseen, ...]
    own_cost: OwnCost
    servers: tuple[ServerFacts, ...]

    @property
    def failed(self) -> bool:
        """Returns whether a finding is an error."""
        return any(finding.severity is Severity.ERROR for finding in self.findings)


def examine(evidence: Evidence, rules: Iterable[Rule], own_cost: OwnCost) -> Report:
    """Return the findings of all rules, errors first, and within a severity in the order of the rules."""
    rules = tuple(rules)
    found = [finding for rule in rules for finding in rule.find(evidence)]
    found.sort(key=lambda finding: finding.severity is not Severity.ERROR)
    return Report(
        version=evidence.version,
        nodes=evidence.scale.nodes,
        planned_nodes=evidence.scale.planned,
        window_seconds=evidence.window_s,
        findings=tuple(found),
        unseen=tuple(sorted({*evidence.unseen, *_missing(evidence, rules)}, key=lambda each: (each.what, each.why))),
        servers=tuple(_facts(server, evidence.scale) for server in evidence.servers),
        own_cost=own_cost,
    )


def _missing(evidence: Evidence, rules: Sequence[Rule]) -> Iterator[Unseen]:
    """Yield what could not be examined because API servers that were read lack the metrics for it."""
    for rule in rules if evidence.servers else ():
        for what, metrics in rule.needs:
            if not any(map(evidence.has, metrics)):
                yield Unseen(what, f"the API server has no metric {metrics[0]}")


def _facts(server: Server, scale: Scale) -> ServerFacts:
    def now(name: str, verb: str = "") -> float | None:
        if name not in server.after.series:
            return None
        return sum(value for labels, value in server.series(name) if not verb or labels.get("verb") == verb)

    has_requests = REQUESTS in server.after.series
    requests = sum(rate for _, rate in server.rates(REQUESTS)) if has_requests else None
    memory = now(RESIDENT)
    planned = planned_memory_bytes(memory, scale) if memory is not None else None
    return ServerFacts(server.address, memory, planned, now(INFLIGHT), requests, now(LONGRUNNING, "WATCH"))
