"""Issue 17: the files of rules are valid, and each alert fires, waits and resolves as promtool evaluates it."""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from muster.chart.files import chart
from muster.telemetry.alerts.alert import Alert, RuleFile
from muster.telemetry.alerts.alerts import FILES, RUNBOOKS, by_name, rule_file
from tests.support.prometheus import program
from tests.unit.telemetry.alerts.cases import ALWAYS, CASES, COUNTER, GAUGE, NODES

_FAULT_MIN: Final = 10
_END_MIN: Final = 270
_LONG_END_MIN: Final = 500
_A: Final = 'job="controller", instance="a"'
_B: Final = 'job="controller", instance="b"'


def promtool(*arguments: str | Path) -> str:
    """Run promtool. Raises AssertionError with its output if it fails."""
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def check(folder: Path, tests: Iterable[tuple[Alert, dict[str, Any]]]) -> None:
    """Evaluate each alert alone: promtool evaluates all rules of a file for each test."""
    files = []
    for number, (alert, test) in enumerate(tests):
        rules = folder / f"rules-{number}.yaml"
        rules.write_text(rule_file(RuleFile("one", (alert,))))
        files.append(folder / f"test-{number}.yaml")
        whole = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}
        files[-1].write_text(yaml.safe_dump(whole))
    promtool("test", "rules", *files)


@pytest.mark.slow
def test_rules_of_all_files_together_have_no_duplicates(tmp_path: Path) -> None:
    """As in the chart's PrometheusRule: `promtool` names rules that have the same name and labels."""
    together = tmp_path / "rules.yaml"
    groups = [group for file in FILES for group in yaml.safe_load(rule_file(file))["groups"]]
    together.write_text(yaml.safe_dump({"groups": groups}))
    assert "duplicate" not in promtool("check", "rules", together)


def alert_of(name: str) -> Alert:
    """The first alert of a name."""
    return by_name()[name][0]


def given(series: Mapping[str, str], name: str, expected: Mapping[int, list[dict[str, Any]]]) -> dict[str, Any]:
    """A test of promtool: which alerts of a name fire, by minute."""
    inputs = [{"series": each, "values": values} for each, values in series.items()]
    at = [{"eval_time": f"{minute}m", "alertname": name, "exp_alerts": each} for minute, each in expected.items()]
    return {"interval": "1m", "input_series": inputs, "alert_rule_test": at}


def fires(alert: Alert, labels: Mapping[str, str], summary: str) -> list[dict[str, Any]]:
    """What promtool expects of an alert that fires."""
    notes = {"summary": summary, "runbook_url": f"{RUNBOOKS}/{alert.name}.md"}
    return [{"exp_labels": {"severity": alert.severity, **labels}, "exp_annotations": notes}]


@pytest.mark.slow
def test_alerts_fire_after_their_wait_and_resolve(tmp_path: Path) -> None:
    tests = []
    for name, case in CASES.items():
        alert = alert_of(name)
        start = _FAULT_MIN + alert.for_s // 60 + case.late_min
        expected: dict[int, list[dict[str, Any]]] = {_FAULT_MIN - 1: [], start: fires(alert, case.labels, case.summary)}
        if alert.for_s:
            expected[_FAULT_MIN + alert.for_s // 60 - 1] = []
        end = _LONG_END_MIN if "[6h]" in alert.expr else _END_MIN
        tests.append((alert, given(case.series, name, expected | {end: []})))
    check(tmp_path, tests)


def test_the_files_of_the_chart_are_valid_for_promtool() -> None:
    files = sorted((chart() / "files/rules").glob("*.yaml"))
    assert [file.stem for file in files] == sorted(file.name for file in FILES)
    assert promtool("check", "rules", "--lint-fatal", *files).count("SUCCESS") == len(files)


QUIET: Final[dict[str, tuple[str, dict[str, str]]]] = {
    "the gauge of a standby is that of its last term": (
        "MusterRemediationHeld",
        {
            f'muster_remediation_held_nodes{{{_A}, reason="Breaker"}}': ALWAYS,
            f'muster_remediation_held_nodes{{{_B}, reason="Breaker"}}': "0x600",
            f"muster_leader{{{_A}}}": "0x600",
            f"muster_leader{{{_B}}}": ALWAYS,
        },
    ),
    "a restart of the leader sets its counter to 0": (
        "MusterCheckpointsNotSaved",
        {"muster_trainingjob_checkpoints_not_saved_total": "50x20 0x600"},
    ),
    "a checkpoint was quarantined hours ago": (
        "MusterCheckpointsQuarantined",
        {'muster_trainingjob_checkpoints_quarantined_total{reason="Corrupt"}': "5x600"},
    ),
    "another replica leads": (
        "MusterNoLeader",
        {
            f'muster_leader{{lease="muster-controller", {_A}}}': "1x20 0x600",
            f'muster_leader{{lease="muster-controller", {_B}}}': "0x20 1x600",
        },
    ),
    "the leader has lost its lease for a moment": (
        "MusterNoLeader",
        {f'muster_leader{{lease="muster-controller", {_A}}}': "1x9 0 1x600"},
    ),
    "gangs hold reserved nodes": (
        "MusterGangsWaitWithIdleGpus",
        {'muster_scheduler_idle_while_waiting_gpu_seconds_total{reason="reserved"}': "0+9000x600"},
    ),
    "conflicts and refused evictions are normal": (
        "MusterApiErrors",
        {
            'muster_api_requests_total{job="controller", code="409"}': COUNTER,
            'muster_api_requests_total{job="controller", code="429"}': COUNTER,
            'muster_api_requests_total{job="controller", code="200"}': COUNTER,
        },
    ),
    "a few of many agents are down": (
        "MusterTargetsDown",
        {f'up{{job="agent", instance="{number}"}}': "0x600" if number < 3 else ALWAYS for number in range(50)},
    ),
    "no job restarted": (
        "MusterTimeToUsefulHigh",
        {f'muster_trainingjob_time_to_useful_seconds_bucket{{le="{le}"}}': "7x600" for le in ("600", "+Inf")},
    ),
    "nodes fetch their first addresses": (
        "MusterNodeAddressesShort",
        {'muster_network_addresses_short{instance="a", reason="Warming"}': GAUGE},
    ),
    "single-node jobs have no partner for copies": (
        "MusterShardCopiesFail",
        {
            'muster_cache_shard_copies_total{outcome="no-partner"}': COUNTER,
            'muster_cache_shard_copies_total{outcome="ok"}': COUNTER,
        },
    ),
}


@pytest.mark.slow
def test_normal_figures_fire_no_alert(tmp_path: Path) -> None:
    quiet: dict[int, list[dict[str, Any]]] = {65: [], 90: [], 200: []}
    check(tmp_path, [(alert_of(name), given(series, name, quiet)) for name, series in QUIET.values()])


def test_one_ruler_for_several_clusters_names_the_cluster_at_fault(tmp_path: Path) -> None:
    alert, lease = alert_of("MusterNoLeader"), 'lease="muster-controller"'
    series = {f'muster_leader{{{lease}, cluster="a"}}': ALWAYS, f'muster_leader{{{lease}, cluster="b"}}': "0x600"}
    expected = fires(alert, {"cluster": "b"}, CASES[alert.name].summary)
    check(tmp_path, [(alert, given(series, alert.name, {30: expected}))])


def test_a_shadow_installation_that_leads_hides_no_fault(tmp_path: Path) -> None:
    alert, lease = alert_of("MusterNoLeader"), 'lease="muster-controller"'
    live, shadow = f'muster_leader{{{lease}, namespace="live"}}', f'muster_leader{{{lease}, namespace="shadow"}}'
    expected = fires(alert, {"namespace": "live"}, CASES[alert.name].summary)
    check(tmp_path, [(alert, given({live: "0x600", shadow: ALWAYS}, alert.name, {30: expected}))])


def test_agents_missing_everywhere_fire_although_prometheus_has_no_target_of_them(tmp_path: Path) -> None:
    alert = alert_of("MusterAgentsMissing")
    summary = "100% of the nodes have no running agent, so their faults go unseen."
    check(tmp_path, [(alert, given(NODES, alert.name, {30: fires(alert, {}, summary)}))])


def test_each_alert_fires_in_a_scenario_with_its_fault() -> None:
    """A scenario fails if an alert of its mark does not fire (tests/scenarios/telemetry/conftest.py)."""
    folder = Path(__file__).parents[3] / "scenarios/telemetry"
    fired = set()
    for file in folder.glob("test_alerts_*.py"):
        module = importlib.import_module(f"tests.scenarios.telemetry.{file.stem}")
        for name, test in vars(module).items():
            if name.startswith("test_"):
                marks = getattr(test, "pytestmark", ())
                fired.update(alert for mark in marks if mark.name == "fires" for alert in mark.args)
    assert fired == by_name().keys()
