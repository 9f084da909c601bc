"""Writes in a quiet hour, counted from the API server's audit log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.health.quiet import Quiet, count
from tests.support.auditlog import AuditLog


def _line(agent: str, verb: str, resource: str, name: str, code: int = 200) -> str:
    what, _, sub = resource.partition("/")
    reference = {"resource": what, "subresource": sub, "name": name}
    return json.dumps(
        {"verb": verb, "userAgent": agent, "objectRef": reference, "responseStatus": {"code": code}, "user": {}}
    )


def _quiet(folder: Path, lines: list[str]) -> Quiet:
    log = AuditLog(folder)
    (folder / "audit.log").write_text("".join(line + "\n" for line in lines))
    writes, by_node = count(log.entries())
    return Quiet(
        seconds=1800.0,
        agents=4,
        writes=writes,
        agent_writes_most=max(by_node.values(), default=0),
        controller_cpu_s=9.0,
        apiserver_cpu_s=0.0,
        controller_rss_mb=0.0,
        controller_peak_rss_mb=0.0,
    )


def test_lease_renewals_are_counted_apart_from_other_writes(tmp_path: Path) -> None:
    """By the hour, refused ones too; writes of modelled kubelets are left out."""
    lines = [_line("muster-controller", "update", "leases", "muster-controller")] * 10
    lines += [_line("muster-controller", "patch", "nodes/status", "node-1")] * 2
    lines += [_line("muster-controller", "create", "noderemediations", "", code=409)]
    lines += [_line("modelled-kubelets", "patch", "nodes/status", "node-2")] * 50
    lines += [_line("kube-apiserver/v1", "update", "leases", "apiserver-1")] * 4
    found = _quiet(tmp_path, lines)
    figures = found.figures(nodes=100)
    assert figures["controller_writes_per_hour"] == 26
    assert figures["controller_lease_renewals_per_hour"] == 20
    assert figures["controller_other_writes_per_hour"] == 6
    assert figures["others_writes_per_hour"] == 8
    assert figures["controller_cpu_percent"] == pytest.approx(0.5)
    assert found.writes["muster-controller"]["create (409) noderemediations"] == 1


def test_agents_are_counted_each_and_multiplied_only_under_a_name_that_says_so(tmp_path: Path) -> None:
    """One that writes more than the others is seen."""
    lines = [_line("muster-agent/bench", "patch", "nodehealths/status", f"node-{number}") for number in range(4)]
    lines += [_line("muster-agent/bench", "patch", "nodehealths/status", "node-3")] * 4
    figures = _quiet(tmp_path, lines).figures(nodes=100)
    assert figures["agent_writes_per_hour"] == 4
    assert figures["agent_writes_most_per_hour"] == 10
    assert figures["agents_on_all_nodes_extrapolated_writes_per_hour"] == 400
    assert figures["controller_writes_per_hour"] == 0
