"""The finding about an expensive workload."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster.api.finding import Finding, Growth, Scale, Severity
from muster.doctor.costs.collect import RequestUsage, tally_files
from muster.doctor.costs.cost import Objects
from muster.doctor.costs.owners import Owners, PodFacts
from muster.doctor.costs.rule import RULE
from muster.doctor.evidence import Evidence
from muster.kube.objects.meta import OwnerReference
from tests.support.auditevents import event, polling, text


def findings(
    tmp_path: Path, lines: list[str], *, nodes: int = 10, planned: int = 100, pods: int = 120
) -> list[Finding]:
    (tmp_path / "log").write_bytes(text(lines))
    owner = OwnerReference(api_version="apps/v1", kind="DaemonSet", name="telemetry", uid="u", controller=True)
    facts = [PodFacts("monitoring", f"telemetry-{n}", "telemetry", f"node-{n}", owner) for n in range(nodes)]
    usage = tally_files([tmp_path / "log"], Owners(facts), frozenset())
    usage = usage._replace(counted={"pods": Objects(pods, 3000.0)})
    return list(RULE.find(Evidence(scale=Scale(nodes, planned), parts={RequestUsage: usage})))


def test_finding_names_the_daemonset_its_growth_the_cost_at_both_sizes_and_the_fix(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, polling(10, 120, 5.0))
    assert found.severity is Severity.WARNING
    assert [(who.kind, who.name) for who in found.who] == [
        ("DaemonSet", "monitoring/telemetry"),
        ("ServiceAccount", "monitoring/telemetry"),
    ]
    assert "grows per node squared" in found.title
    assert "7,500 nodes" in found.title
    costs = {cost.what: cost for cost in found.costs}
    assert costs["objects in lists"].growth is Growth.PER_NODE_SQUARED
    assert costs["requests"].growth is Growth.PER_NODE
    assert costs["requests"].planned == pytest.approx(20, rel=0.01)
    assert found.evidence[2].value == pytest.approx(5.0, rel=0.01)
    assert "watch" in found.fix.summary
    assert found.fix.commands == ("muster doctor block monitoring/telemetry",)


def test_workload_above_the_budget_today_is_an_error(tmp_path: Path) -> None:
    (found,) = findings(tmp_path, polling(10, 120, 5.0), pods=60_000)
    assert found.severity is Severity.ERROR


def test_slow_poll_of_few_objects_is_not_found(tmp_path: Path) -> None:
    lines = [
        event(
            "get", "configmaps", at + pod, namespace="monitoring", name="c", pod=f"telemetry-{pod}", node=f"node-{pod}"
        )
        for at in range(0, 600, 60)
        for pod in range(10)
    ]
    assert findings(tmp_path, lines) == []


def test_without_a_log_nothing_is_found() -> None:
    assert list(RULE.find(Evidence(scale=Scale(10, 100)))) == []
