"""The report of `muster doctor` as a page for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from muster.cli.output import paint, say, say_command

if TYPE_CHECKING:
    from muster.api.finding import Culprit, Finding
    from muster.doctor.examine import Report

_COLORS = {"error": "red", "warning": "yellow"}


def print_report(report: Report) -> None:
    """Print the findings, what could not be seen, and what the doctor cost."""
    from muster.doctor.evidence import NUMBER_OF_NODES

    for finding in report.findings:
        print_finding(finding, report.planned_nodes)
    if not report.findings and report.servers:
        say("No finding.", head=paint("OK ", "green", bold=True))
    elif not report.findings:
        say("No finding, but the metrics could not be read.", head=paint("UNKNOWN ", "yellow", bold=True))
    if report.unseen:
        click.echo(paint("Not examined", bold=True))
        for each in report.unseen:
            right = f"; it needs the right: {each.right}" if each.right else ""
            say(f"{each.what}: {each.why}{right}", head="  - ")
        click.echo()
    for server in report.servers:
        load = (
            ("memory", server.memory_bytes, "bytes"),
            (f"at {report.planned_nodes:,} nodes", server.planned_memory_bytes, "bytes"),
            ("requests", server.requests_per_second, "/s"),
            ("in flight", server.inflight, ""),
            ("watches", server.watches, ""),
        )
        facts = [f"{what} {amount(value, unit)}" for what, value, unit in load if value is not None]
        say(f"{server.address}: {', '.join(facts) or 'no metrics'}")
    cost = report.own_cost
    unknown = any(each.what == NUMBER_OF_NODES for each in report.unseen)
    nodes = "unknown number of nodes" if unknown else f"{report.nodes} node{'s' if report.nodes != 1 else ''}"
    say(
        f"Kubernetes {report.version}, {nodes}, watched for {report.window_seconds:.0f} s; "
        f"the doctor sent {cost.requests} requests and read {amount(cost.bytes, 'bytes')}."
    )


def print_finding(finding: Finding, planned: int) -> None:
    """Print one finding. `planned` is the number of nodes for which its costs are planned."""
    severity = finding.severity.value
    say(finding.title, head=paint(severity.upper(), _COLORS[severity], bold=True) + " ", hang=2)
    if finding.who:
        say(", ".join(map(_who, finding.who)), head="  who       ")
    for number, measure in enumerate(finding.evidence):
        text = f"{measure.what}: {amount(measure.value, measure.unit)} ({measure.source})"
        say(text, head="  evidence  " if number == 0 else " " * 12)
    for number, cost in enumerate(finding.costs):
        today, then = amount(cost.today, cost.unit), amount(cost.planned, cost.unit)
        say(
            f"{cost.what}: {today} today, {then} at {planned:,} nodes",
            head="  cost      " if number == 0 else " " * 12,
        )
    say(finding.fix.summary, head="  fix       ")
    for line in (*finding.fix.commands, *finding.fix.manifest.splitlines()):
        say_command(f"          {line}")
    click.echo()


def _who(culprit: Culprit) -> str:
    share = f" ({culprit.share:.0%})" if culprit.share is not None else ""
    return f"{culprit.kind} {culprit.name}{share}"


def amount(value: float, unit: str) -> str:
    """Format a number with its unit: three significant digits, and bytes with a binary prefix."""
    if unit.startswith("bytes"):
        for prefix in ("", "Ki", "Mi", "Gi"):
            if abs(value) < 1024 or prefix == "Gi":
                break
            value /= 1024
        return f"{_digits(value)} {prefix}B{unit.removeprefix('bytes')}"
    return _digits(value) + (unit if unit.startswith(("/", "%")) else f" {unit}" if unit else "")


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
