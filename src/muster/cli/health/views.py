"""Prints `muster health` of a cluster."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec import to_builtins

from muster.cli.errors import ExitCode
from muster.cli.health.config import print_problems
from muster.cli.nodes.node_health import SILENT_S, found_wrong, read_fleet, read_node
from muster.cli.output import age, duration, note, print_data, print_table, say
from muster.cli.program import prefix
from muster.fleet.health.explain import lines

if TYPE_CHECKING:
    from muster.cli.health.config import ConfigProblem
    from muster.cli.target import Cluster

HEADERS = ("NODE", "ACTION", "CARE", "RULE", "SEEN", "WHY")
OPTIONAL = ("SEEN", "CARE")
_NAMES = 8


async def show(cluster: Cluster, namespace: str, output: str) -> int:
    """Print the faulty nodes."""
    fleet = await read_fleet(cluster, namespace)
    wrong, now = list(found_wrong(fleet)), time.time()
    silent = [each.node for each in fleet.nodes if each.silent(now)]
    if output:
        nodes = [
            {"node": each.node, "reported": each.reported, "care": each.care, **to_builtins(each.decision)}
            for each in wrong
        ]
        problems = to_builtins(fleet.problems)
        print_data({"nodes": to_builtins(nodes), "silent": silent, "configProblems": problems}, output)
        return _code(fleet.problems)
    rows = []
    for each in wrong:
        said = each.decision
        seen = max((finding.last_s for reason in said.reasons for finding in reason.findings), default=None)
        when = age(datetime.fromtimestamp(seen, UTC)) if seen is not None else "-"
        rows.append(
            (each.node, said.action, each.care, f"{said.rule} ({said.where})" if said.rule else "-", when, said.why)
        )
    if rows:
        print_table(HEADERS, rows, OPTIONAL)
    if len(silent) == len(fleet.nodes):
        note("no agent reports here: docs/health.md says how to switch it on")
    else:
        note(f"{len(fleet.nodes):,} nodes, {len(wrong):,} of them here")
    if silent and len(silent) < len(fleet.nodes):
        names = ", ".join(silent[:_NAMES]) + (f" and {len(silent) - _NAMES} more" if len(silent) > _NAMES else "")
        note(f"no agent has reported for over {duration(SILENT_S)} from {names}")
    print_problems(fleet.problems, namespace)
    return _code(fleet.problems)


def _code(problems: Sequence[ConfigProblem]) -> ExitCode:
    """Return the exit status: 1 if a configuration is not in force, so that scripts notice it."""
    return ExitCode.FAILED if problems else ExitCode.DONE


async def explain_node(cluster: Cluster, namespace: str, name: str, output: str) -> int:
    """Print the action for a node, and the evidence."""
    report, problems = await read_node(cluster, namespace, name)
    if output:
        about = {"node": name, "reported": report.reported, "care": report.care, "configProblems": problems}
        print_data({**to_builtins(about), **to_builtins(report.decision)}, output)
        return _code(problems)
    say(f"{name}:")
    for text in lines(report.decision, report.policy):
        say(text, head="  ")
    if report.care != "None":
        say(f"now: {report.care}; {prefix()} nodes history {name} says since when and why", head="  ")
    if report.silent(time.time()):
        since = f"since {report.reported:%FT%TZ}" if report.reported is not None else "yet"
        note(f"its agent has not reported {since}: what is wrong now may not be known")
    print_problems(problems, namespace)
    return _code(problems)
