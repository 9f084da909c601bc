"""Issue 17: expressions of alerts name metrics and labels that Muster's processes export."""

from __future__ import annotations

import re
from typing import Final

import pytest

from muster.cli.reference.metrics import by_process
from muster.telemetry.alerts.alert import MARK, Alert
from muster.telemetry.alerts.alerts import FILES, duration, rule_file
from muster.telemetry.alerts.rules.controller import CONTROLLER
from muster.telemetry.alerts.targets import JOBS
from muster.telemetry.alerts.thresholds import DEFAULTS
from muster.telemetry.promql.expression import parse_expression

_TARGET: Final = {"job", "instance", "namespace", "cluster"}
_OF_PROMETHEUS: Final = {"up": set[str](), "process_start_time_seconds": set[str]()}
ALERTS: Final = [alert for file in FILES for alert in file.alerts]
every_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)


def exported() -> dict[str, set[str]]:
    """Labels of each metric in the reference, with the samples of histograms."""
    found = dict(_OF_PROMETHEUS)
    for parts in by_process().values():
        for metric in (each for metrics in parts.values() for each in metrics):
            names = [metric.name]
            if metric.kind == "histogram":
                names = [f"{metric.name}_{suffix}" for suffix in ("bucket", "sum", "count")]
            for name in names:
                found[name] = set(metric.labels) | ({"le"} if name.endswith("_bucket") else set())
    return found


@every_alert
def test_metrics_and_labels_of_an_expression_are_in_the_reference(alert: Alert) -> None:
    known = exported()
    expression = parse_expression(alert.rendered(DEFAULTS))
    labels: set[str] = set()
    for selector in expression.selectors:
        names = selector.names()
        assert names is not None
        assert names <= known.keys(), names
        labels |= set().union(*(known[name] for name in names)) | _TARGET
        for matchers in selector.matchers:
            asked = {matcher.name for matcher in matchers} - {"__name__"}
            assert asked <= labels, (names, asked)
    by = {each.strip() for text in re.findall(r"\b(?:by|on) \(([^)]*)\)", alert.expr) for each in text.split(",")}
    assert by <= labels | {"configmap"}, by - labels
    used = set(re.findall(r"\$labels\.(\w+)", alert.summary))
    assert used <= by | {"configmap"} or alert.expr.startswith("absent"), used


@every_alert
def test_an_alert_aggregates_by_cluster_so_that_one_ruler_serves_several(alert: Alert) -> None:
    assert "cluster" in alert.expr or alert.expr.startswith("absent")
    for text in re.findall(r"\b(?:by|on) \(([^)]*)\)", alert.expr):
        assert "cluster" in text, text


@every_alert
def test_a_threshold_ends_its_line_and_a_comment_names_it(alert: Alert) -> None:
    text = alert.rendered(DEFAULTS)
    assert re.findall(
        rf"> [\d.]+ # {re.escape(MARK)}(\w+)$|< [\d.]+ # {re.escape(MARK)}(\w+)$", text, re.MULTILINE
    ) == [(name, "") if f"> ${name}" in alert.expr else ("", name) for name in alert.thresholds()]
    assert text.count(" # ") == len(alert.thresholds())


def test_targets_have_the_labels_of_the_charts_monitors() -> None:
    jobs = {job for alert in ALERTS for job in re.findall(r'up\{job="([\w-]+)"', alert.expr)}
    assert jobs <= set(JOBS)


def test_unknown_thresholds_are_refused() -> None:
    with pytest.raises(KeyError, match="wrong"):
        rule_file(CONTROLLER, thresholds={"wrong": 1.0})


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.5, "500ms"), (1, "1s"), (90, "90s"), (120, "2m"), (3600, "1h"), (5400, "90m")]
)
def test_durations_are_those_of_prometheus(seconds: float, text: str) -> None:
    assert duration(seconds) == text
