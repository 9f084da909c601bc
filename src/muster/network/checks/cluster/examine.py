"""All rules of cluster DNS, and findings about nodes from their NodeHealth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from muster.api.finding import Culprit, Finding, Measure, Severity
from muster.api.node_health import NodeHealth, ObservedFinding
from muster.network.checks.cluster import ndots, placement
from muster.network.checks.cluster.evidence import DnsEvidence
from muster.network.checks.kinds import KINDS
from muster.network.checks.page import ChecksPage
from muster.network.checks.problem import finding_id

RECENT: Final = timedelta(hours=1)
"""Older findings of nodes are left out."""
_WHO: Final = 8


class NodeSight(NamedTuple):
    """A finding of one node."""

    node: str
    finding: ObservedFinding


def examine_dns(evidence: DnsEvidence | None) -> list[Finding]:
    """Return the findings about cluster DNS. Pure."""
    if evidence is None:
        return []
    return [*placement.find(evidence), *ndots.find(evidence)]


def sights_of(health: NodeHealth, now: datetime) -> Iterator[NodeSight]:
    """Yield the recent findings of a node that are about its network."""
    for each in health.status.findings:
        if (each.check, each.code) in KINDS and now - each.last_time <= RECENT:
            yield NodeSight(health.metadata.name, each)


def sights_of_page(page: ChecksPage, now: datetime) -> Iterator[NodeSight]:
    """Yield what a network agent found."""
    for each in page.problems:
        if (each.check, each.code) in KINDS:
            seen = ObservedFinding(
                check=each.check,
                code=each.code,
                component=each.component,
                first_time=now,
                last_time=now,
                message=each.message,
            )
            yield NodeSight(page.node, seen)


def examine_nodes(sights: Iterable[NodeSight]) -> list[Finding]:
    """Return one finding for each kind of problem, with the nodes that have it. Pure."""
    groups: dict[tuple[str, str], list[NodeSight]] = {}
    for sight in sights:
        groups.setdefault((sight.finding.check, sight.finding.code), []).append(sight)
    return [_finding(key, group) for key, group in sorted(groups.items())]


def in_order(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """Return errors before warnings."""
    return tuple(sorted(findings, key=lambda finding: finding.severity is not Severity.ERROR))


def _finding(key: tuple[str, str], group: Sequence[NodeSight]) -> Finding:
    kind = KINDS[key]
    newest: dict[str, ObservedFinding] = {}
    for sight in group:
        known = newest.get(sight.node)
        if known is None or sight.finding.last_time >= known.last_time:
            newest[sight.node] = sight.finding
    names = sorted(newest, key=lambda name: (-newest[name].count, name))
    shown = names[:_WHO]
    first = newest[shown[0]]
    where = f"{shown[0]} {first.component}".strip()
    return Finding(
        id=finding_id(*key),
        severity=kind.severity,
        title=f"{kind.title}. Node {where}: {first.message}.",
        who=tuple(Culprit("Node", name) for name in shown),
        evidence=(
            Measure("nodes", len(names), "", f"NodeHealth, check {key[0]}, code {key[1]}"),
            Measure("times", sum(each.count for each in newest.values()), "", "NodeHealth"),
        ),
        fix=kind.fix,
    )
