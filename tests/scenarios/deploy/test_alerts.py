"""Issue 17: the chart's PrometheusRule holds the alerts of the parts that are on, with the values of the chart."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import yaml

from muster.telemetry.alerts.alerts import by_name
from tests.scenarios.deploy.conftest import Helm
from tests.support.prometheus import program

ON = ("--show-only=templates/alerts.yaml", "--set=telemetry.alerts.enabled=true")
EVERYTHING = (
    "--set=health.enabled=true,health.preflight.enabled=true,fleet.joins.enabled=true,fleet.scaling.enabled=true",
    "--set=teams.enabled=true,readCache.enabled=true,network.enabled=true,data.cache.enabled=true",
    "--set=telemetry.guard.enabled=true,telemetry.guard.config.upstream.url=http://prometheus:9090",
    "--set=health.preflight.config.image=gputest",
)


def rules(helm: Helm, *arguments: str) -> list[dict[str, Any]]:
    """The alerts of a rendered chart."""
    rendered = yaml.safe_load(helm.template(*ON, *arguments))
    assert rendered["kind"] == "PrometheusRule"
    return [rule for group in rendered["spec"]["groups"] for rule in group["rules"]]


def test_alerts_are_off_by_default(offline_helm: Helm) -> None:
    assert "PrometheusRule" not in offline_helm.template()


def test_parts_that_are_off_have_no_alerts(offline_helm: Helm) -> None:
    found = rules(offline_helm)
    assert {"MusterNoLeader", "MusterJobsStalled", "MusterSchedulerNotPlanning"} <= {each["alert"] for each in found}
    absent = [each["expr"] for each in found if each["alert"] == "MusterTargetsMissing"]
    assert len(absent) == 1
    assert 'job="controller"' in absent[0]
    shadow = {each["alert"] for each in rules(offline_helm, "--set=shadow=true", *EVERYTHING)}
    assert "MusterJobsStalled" not in shadow


def test_labels_runbooks_thresholds_and_namespace_are_those_of_the_values(offline_helm: Helm) -> None:
    found = rules(
        offline_helm,
        "--namespace=platform",
        "--set=telemetry.alerts.thresholds.timeToUsefulSeconds=600,telemetry.alerts.ruleLabels.team=platform",
        "--set=telemetry.alerts.runbookBaseUrl=https://wiki.example.com/muster",
        "--set=telemetry.alerts.disabled={MusterNoLeader}",
    )
    names = {each["alert"] for each in found}
    assert "MusterNoLeader" not in names
    by = {each["alert"]: each for each in found}
    slow = by["MusterTimeToUsefulHigh"]
    assert "> 600 # telemetry.alerts.thresholds.timeToUsefulSeconds" in slow["expr"]
    assert slow["labels"] == {"severity": "warning", "team": "platform"}
    assert slow["annotations"]["runbook_url"] == "https://wiki.example.com/muster/MusterTimeToUsefulHigh.md"
    assert 'up{namespace="platform", job=~"' in by["MusterTargetsDown"]["expr"]


def test_all_rendered_rules_are_valid_for_prometheus(offline_helm: Helm, tmp_path: Path) -> None:
    rendered = yaml.safe_load(offline_helm.template(*ON, *EVERYTHING))
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rendered["spec"]))
    subprocess.run([program("promtool"), "check", "rules", str(file)], check=True, stdout=subprocess.DEVNULL)
    assert {rule["alert"] for group in rendered["spec"]["groups"] for rule in group["rules"]} == by_name().keys()
