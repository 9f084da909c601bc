"""Issue 17.C: the chart's ConfigMaps of dashboards, and the labels that dashboards expect of its monitors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from muster.telemetry.dashboards.boards.all import DASHBOARDS
from tests.scenarios.deploy.conftest import CHART, SYSTEM, Helm
from tests.scenarios.deploy.test_chart import rendered

pytestmark = pytest.mark.slow

ON = "--set=telemetry.dashboards.enabled=true"
PARTS = "--set=network.enabled=true,data.cache.enabled=true,health.enabled=true"


def config_maps(helm: Helm, *arguments: str) -> dict[tuple[str, str], Any]:
    """ConfigMaps of dashboards by namespace and name of the dashboard."""
    return {
        (namespace, name.removeprefix("muster-dashboard-")): body
        for (kind, namespace, name), body in rendered(helm, *arguments).items()
        if kind == "ConfigMap" and name.startswith("muster-dashboard-")
    }


def dashboard(body: dict[str, Any]) -> dict[str, Any]:
    (text,) = body["data"].values()
    found: dict[str, Any] = json.loads(text)
    return found


def runbooks(found: dict[str, Any]) -> list[str]:
    return [link["url"] for panel in found["panels"] for link in panel.get("links", ())]


def test_no_dashboards_by_default(offline_helm: Helm) -> None:
    assert config_maps(offline_helm) == {}


def test_each_part_that_is_on_has_its_dashboard(offline_helm: Helm) -> None:
    always = {"fleet", "jobs", "scheduler", "control-plane"}
    few = config_maps(offline_helm, ON)
    assert {name for _, name in few} == always
    guard = "--set=telemetry.guard.enabled=true,telemetry.guard.config.upstream.url=http://prometheus:9090"
    every = config_maps(offline_helm, ON, PARTS, guard)
    assert {name for _, name in every} == {each.name for each in DASHBOARDS}
    for each in DASHBOARDS:
        body = every[SYSTEM, each.name]
        assert list(body["data"]) == [f"muster-{each.name}.json"]
        assert body["metadata"]["labels"]["grafana_dashboard"] == "1"
        found = dashboard(body)
        wanted = each.to_json()
        for panel in (*found["panels"], *wanted["panels"]):
            panel.pop("links", None)
        assert found == wanted


def test_labels_namespace_and_left_out_dashboards_are_the_users(offline_helm: Helm) -> None:
    more = (
        '--set-json=telemetry.dashboards.labels={"my/dashboard":"yes"}',
        "--set=telemetry.dashboards.annotations.grafana_folder=Muster,telemetry.dashboards.namespace=grafana",
        "--set=telemetry.dashboards.disabled={jobs}",
    )
    found = config_maps(offline_helm, ON, *more)
    assert {name for _, name in found} == {"fleet", "scheduler", "control-plane"}
    metadata = found["grafana", "fleet"]["metadata"]
    assert metadata["annotations"] == {"grafana_folder": "Muster"}
    assert metadata["labels"]["my/dashboard"] == "yes"
    refused = offline_helm.run("template", "m", str(CHART), "--set=telemetry.dashboards.disabled={job}")
    assert "disabled" in refused.stderr


def test_runbooks_are_linked_once_their_address_is_known(offline_helm: Helm) -> None:
    """Grafana would look for a relative link on its own server."""
    assert runbooks(dashboard(config_maps(offline_helm, ON)[SYSTEM, "fleet"])) == []
    base = "https://wiki.example.com/muster"
    found = config_maps(offline_helm, ON, f"--set=telemetry.alerts.runbookBaseUrl={base}")
    links = runbooks(dashboard(found[SYSTEM, "fleet"]))
    assert f"{base}/MusterTargetsDown.md" in links
    assert all(link.startswith(f"{base}/Muster") for link in links)


def test_monitors_keep_labels_of_metrics_that_name_a_job(offline_helm: Helm) -> None:
    """Else Prometheus would call the label exported_job, and panels by job would be empty."""
    objects = rendered(offline_helm, PARTS, "--set=metrics.serviceMonitor.enabled=true")
    for name in ("muster-cache", "muster-network"):
        (endpoint,) = objects["PodMonitor", SYSTEM, name]["spec"]["podMetricsEndpoints"]
        assert endpoint["honorLabels"] is True
