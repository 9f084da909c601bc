"""Prints findings about address ranges, and what nodes need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from muster.cli.errors import ExitCode
from muster.cli.output import paint, print_table, say

if TYPE_CHECKING:
    from muster.network.plan.finding import Finding
    from muster.network.plan.needs import NodeNeeds

_COLORS = {"error": "red", "warning": "yellow"}


def print_findings(findings: Sequence[Finding]) -> None:
    """Print findings, errors first, each with its fix."""
    for finding in findings:
        severity = finding.severity.value
        head = paint(severity.upper(), _COLORS[severity], bold=True)
        say(f"{finding.what} ({finding.id})", head=f"{head} ", hang=2)
        say(", ".join(finding.where), head="  where   ")
        say(finding.fix, head="  fix     ")
        if finding.source:
            say(finding.source, head="  source  ")
    if not findings:
        say("No finding.", head=paint("OK ", "green", bold=True))


def number(count: int, thing: str) -> str:
    """Return `1 peering`, `2 peerings`."""
    return f"{count:,} {thing}" + ("" if count == 1 else "s")


def print_needs(needs: Sequence[NodeNeeds]) -> None:
    """Print the kernel settings that nodes need at the planned size."""
    rows = []
    for each in needs:
        largest = max(each.neighbours, key=lambda table: table.gc_thresh3)
        thresholds = f"{largest.gc_thresh1}/{largest.gc_thresh2}/{largest.gc_thresh3}"
        rows.append(
            (
                each.cluster,
                f"{each.nodes:,}",
                thresholds,
                str(each.conntrack.max),
                f"{each.routes:,}",
                f"{each.route_table:,}",
                str(each.mtu_bytes),
                str(each.pod_mtu_bytes),
            )
        )
    headers = ("CLUSTER", "NODES", "GC_THRESH1/2/3", "CONNTRACK", "NODE ROUTES", "TABLE ROUTES", "MTU", "POD MTU")
    print_table(headers, rows, ("TABLE ROUTES", "NODE ROUTES", "MTU", "POD MTU"))


def exit_code(findings: Sequence[Finding]) -> ExitCode:
    """Return FAILED if a finding is an error."""
    return ExitCode.FAILED if any(each.severity.value == "error" for each in findings) else ExitCode.DONE
