"""Rules in files of Prometheus, in objects of operators, and from the server."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from muster.telemetry.prometheus.answers import Rule as ServerRule
from muster.telemetry.prometheus.answers import RuleGroup
from muster.telemetry.usage.inputs.rules import document_rules, server_rules, template_queries

GROUPS = [
    {
        "name": "g",
        "rules": [
            {"record": "r", "expr": "sum(a)", "labels": {"x": "y"}},
            {"alert": "A", "expr": "b > 0", "annotations": {"d": '{{ with query "c{x=\\"1\\"}" }}{{ . }}{{ end }}'}},
        ],
    }
]


@pytest.mark.parametrize(
    "document",
    [
        {"groups": GROUPS},
        {"namespace": "team", "groups": GROUPS},
        {"kind": "PrometheusRule", "spec": {"groups": GROUPS}},
        {"kind": "VMRule", "spec": {"groups": GROUPS}},
        {"kind": "PrometheusRuleList", "items": [{"kind": "PrometheusRule", "spec": {"groups": GROUPS}}]},
        {"kind": "ConfigMap", "data": {"a.rules": yaml.safe_dump({"groups": GROUPS}), "x": "groups: []"}},
        [{"groups": GROUPS}],
        {"serverFiles": {"alerting_rules.yml": {"groups": GROUPS}}},
        {"additionalPrometheusRulesMap": {"team": {"groups": GROUPS}}},
        {"kind": "ConfigMap", "data": {"alerts": yaml.safe_dump({"groups": GROUPS})}},
        {"kind": "ConfigMap", "data": {"alerts": json.dumps({"groups": GROUPS})}},
        {"kind": "Application", "spec": {"helm": {"values": yaml.safe_dump({"x": {"groups": GROUPS}})}}},
    ],
)
def test_rules_of_a_document_are_found(document: Any) -> None:
    found = list(document_rules(document, "f"))
    assert [(each.name, each.expr, each.records, each.group) for each in found] == [
        ("r", "sum(a)", True, "g"),
        ("A", "b > 0", False, "g"),
    ]
    assert found[1].templates == ('c{x="1"}',)
    assert found[0].source.endswith(": rule r")


@pytest.mark.parametrize(
    "document",
    [
        None,
        "text",
        {"groups": "x"},
        {
            "groups": [
                None,
                {"rules": "x"},
                {"rules": [None, {"record": "r"}, {"expr": "a"}, {"alert": 1, "expr": "a"}]},
            ]
        },
        {"apiVersion": "loki.grafana.com/v1", "kind": "AlertingRule", "spec": {"groups": GROUPS}},
    ],
)
def test_document_without_rules_has_none(document: Any) -> None:
    assert list(document_rules(document, "f")) == []


def test_rules_of_the_server_are_named_as_such() -> None:
    record = ServerRule("recording", "r", "sum(a)")
    alert = ServerRule("alerting", "A", "b", annotations={"x": "{{ query `c` }}"})
    found = list(server_rules([RuleGroup("g", rules=(record, alert))]))
    assert [(each.name, each.records, each.templates) for each in found] == [("r", True, ()), ("A", False, ("c",))]


@pytest.mark.parametrize(
    ("text", "queries"),
    [
        ("{{ $value }}", []),
        ('query "a"', []),
        ("{{ printf \"a{x='%s'}\" $labels.x | query | first | value }}", ["a{x='${verb}'}"]),
        ('{{ printf "%s_total" .Labels.part | query }}', ["${verb}_total"]),
        ('{{ query (print .Labels.part "_total") }}', ["${verb}_total${verb}"]),
        ('{{ $q := "sum(a)" }}{{ if eq $x "b" }}{{ query $q }}{{ end }}', ["sum(a)"]),
        ('{{ with "sum(a)" }}{{ query . }}{{ end }}', ["sum(a)"]),
        ('{{ template "x" "sum(a)" }}', []),
        ('{{ range query `sum(a)` }}{{ .Value | printf "%.1f" }}{{ end }}', ["sum(a)"]),
    ],
)
def test_queries_in_templates_are_found(text: str, queries: list[str]) -> None:
    assert list(template_queries([text])) == queries
