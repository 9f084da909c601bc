"""Queries of dashboards in all versions of the schema, and of other documents of Grafana."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from muster.telemetry.usage.inputs.dashboards import dashboard_questions
from muster.telemetry.usage.inputs.question import Question

PROMETHEUS = {"type": "prometheus", "uid": "p1"}
LOKI = {"type": "loki", "uid": "l1"}


def panel(*exprs: str, **more: Any) -> dict[str, Any]:
    return {"id": 1, "title": "Load", "type": "timeseries", "targets": [{"expr": each} for each in exprs], **more}


def templated(*variables: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"title": "Nodes", "schemaVersion": 39, "templating": {"list": list(variables)}, "panels": [], **more}


def variable(name: str, kind: str = "query", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def v2(*elements: Mapping[str, Any], variables: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    spec = {
        "title": "Nodes",
        "elements": {f"panel-{n}": each for n, each in enumerate(elements)},
        "variables": variables or [],
        "layout": {"kind": "GridLayout", "spec": {"items": []}},
    }
    return {"apiVersion": "dashboard.grafana.app/v2beta1", "kind": "Dashboard", "metadata": {"name": "x"}, "spec": spec}


def v2_panel(query: Mapping[str, Any]) -> dict[str, Any]:
    queries = [{"kind": "PanelQuery", "spec": {"refId": "A", "hidden": False, "query": query}}]
    data = {"kind": "QueryGroup", "spec": {"queries": queries, "transformations": []}}
    return {"kind": "Panel", "spec": {"id": 1, "title": "Load", "data": data}}


def questions(document: Any, *others: str) -> list[Question]:
    return list(dashboard_questions(document, "file.json", frozenset(others)))


def reads(document: Any, names: str = "a b c node_a node_b up", others: tuple[str, ...] = ()) -> set[str]:
    """Names that the queries of a document read."""
    selections = [selection for each in questions(document, *others) for selection in each.query.selections]
    return {name for name in names.split() if any(not each.label and each.reads_name(name) for each in selections)}


TEXT = json.dumps({"panels": [{"targets": [{"expr": "a"}]}]}).encode()
PACKED = base64.b64encode(gzip.compress(TEXT)).decode()
BINARY = base64.b64encode(TEXT).decode()

DOCUMENTS: dict[str, tuple[Any, set[str]]] = {
    "panels": (templated(panels=[panel("a"), panel("b")]), {"a", "b"}),
    "rows of schema 14": ({"title": "x", "rows": [{"title": "r", "panels": [panel("a")]}]}, {"a"}),
    "collapsed row": (templated(panels=[{"type": "row", "collapsed": True, "panels": [panel("a")]}]), {"a"}),
    "answer of the API": ({"meta": {"slug": "x"}, "dashboard": templated(panels=[panel("a")])}, {"a"}),
    "library panel": ({"result": {"elements": [{"kind": 1, "name": "lib", "model": panel("a")}]}}, {"a"}),
    "panel with a library panel inside": (templated(panels=[{"libraryPanel": {"model": panel("a")}}]), {"a"}),
    "exported library elements": (templated(__elements={"u": {"name": "lib", "model": panel("a")}}), {"a"}),
    "annotations": (templated(annotations={"list": [{"name": "n", "expr": "a", "enable": False}]}), {"a"}),
    "annotation with a type": (
        templated(annotations={"list": [{"name": "n", "type": "dashboard", "query": "", "expr": "a"}]}),
        {"a"},
    ),
    "annotation with a target": (templated(annotations={"list": [{"name": "n", "target": {"expr": "a"}}]}), {"a"}),
    "legacy alert": (templated(panels=[panel("a", alert={"conditions": [{"query": {"params": ["A"]}}]})]), {"a"}),
    "hidden target": (templated(panels=[{"targets": [{"expr": "a", "hide": True}]}]), {"a"}),
    "repeated panel": (
        templated(variable("n", "custom", query="a,b"), panels=[panel("node_$n", repeat="n")]),
        {"node_a", "node_b"},
    ),
    "list of dashboards": ([templated(panels=[panel("a")]), templated(panels=[panel("b")])], {"a", "b"}),
    "ConfigMap": ({"kind": "ConfigMap", "data": {"x.json": json.dumps(templated(panels=[panel("a")]))}}, {"a"}),
    "GrafanaDashboard": (
        {"kind": "GrafanaDashboard", "spec": {"json": json.dumps(templated(panels=[panel("a")]))}},
        {"a"},
    ),
    "v2": (v2(v2_panel({"kind": "DataQuery", "group": "prometheus", "spec": {"expr": "a"}})), {"a"}),
    "v2alpha1": (v2(v2_panel({"kind": "prometheus", "spec": {"expr": "a"}})), {"a"}),
    "v2 library panel": (v2({"kind": "LibraryPanel", "spec": {"id": 1, "libraryPanel": {"model": panel("a")}}}), {"a"}),
    "v2 variable": (
        v2(
            variables=[
                {
                    "kind": "QueryVariable",
                    "spec": {
                        "name": "j",
                        "query": {
                            "kind": "DataQuery",
                            "group": "prometheus",
                            "spec": {"query": "label_values(a, job)"},
                        },
                    },
                }
            ]
        ),
        {"a"},
    ),
    "v2 variable of before": (
        v2(
            variables=[
                {
                    "kind": "QueryVariable",
                    "spec": {
                        "name": "j",
                        "query": {"kind": "prometheus", "spec": {"__legacyStringValue": "label_values(a, job)"}},
                    },
                }
            ]
        ),
        {"a"},
    ),
    "v2 custom variable": (
        v2(
            v2_panel({"kind": "DataQuery", "group": "prometheus", "spec": {"expr": "node_$n"}}),
            variables=[{"kind": "CustomVariable", "spec": {"name": "n", "query": "a"}}],
        ),
        {"node_a"},
    ),
    "alert rules of Grafana": (
        {
            "apiVersion": 1,
            "groups": [
                {
                    "name": "g",
                    "rules": [
                        {
                            "title": "t",
                            "data": [
                                {"refId": "A", "datasourceUid": "p1", "model": {"expr": "a > 1"}},
                                {
                                    "refId": "C",
                                    "datasourceUid": "__expr__",
                                    "model": {"type": "threshold", "expression": "A"},
                                },
                            ],
                        }
                    ],
                }
            ],
        },
        {"a"},
    ),
    "recording rule of Grafana": (
        {"groups": [{"rules": [{"title": "t", "record": {"metric": "m"}, "data": [{"model": {"expr": "a"}}]}]}]},
        {"a"},
    ),
    "packed GrafanaDashboard": ({"kind": "GrafanaDashboard", "spec": {"gzipJson": PACKED}}, {"a"}),
    "binary ConfigMap": ({"kind": "ConfigMap", "binaryData": {"x.json": BINARY}}, {"a"}),
    "dashboard of Perses": ({"kind": "PrometheusTimeSeriesQuery", "spec": {"query": "sum(a)"}}, {"a"}),
    "ScaledObject": ({"triggers": [{"type": "prometheus", "metadata": {"query": "sum(a)"}}]}, {"a"}),
    "adapter": ({"rules": [{"seriesQuery": '{__name__=~"^node_.*"}'}]}, {"node_a", "node_b"}),
    "not a dashboard": ({"name": "package", "version": "1", "scripts": {"test": "a"}}, set()),
    "provider of dashboards": (
        {"apiVersion": 1, "providers": [{"name": "a", "type": "file", "options": {"path": "b"}}]},
        set(),
    ),
    "empty targets": (
        templated(panels=[panel("", " "), {"targets": None}, {"targets": [None, {"expr": None}]}]),
        set(),
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_document_gives_its_queries(name: str) -> None:
    document, expected = DOCUMENTS[name]
    assert reads(document) == expected
    assert reads(yaml.safe_load(yaml.safe_dump(document))) == expected


VARIABLES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "label_values": (variable("x", query='label_values(a{job=~"$j"}, instance)'), {"a"}),
    "label_values as an object": (variable("x", query={"query": "label_values(a, instance)", "refId": "v"}), {"a"}),
    "definition alone": (variable("x", query="", definition="label_values(a, instance)"), {"a"}),
    "label_values of all metrics with conditions": (
        variable("x", query='label_values({job="x"}, pod)'),
        set("abc") | {"node_a", "node_b", "up"},
    ),
    "query_result": (variable("x", query="query_result(topk(5, a) by (job))"), {"a"}),
    "metrics": (variable("x", query="metrics(ode_)"), {"node_a", "node_b"}),
    "names of metrics": (variable("x", query="label_values(__name__)"), {"a", "b", "c", "node_a", "node_b", "up"}),
    "label_names": (variable("x", query="label_names()"), {"a", "b", "c", "node_a", "node_b", "up"}),
    "label_names of metrics": (variable("x", query="label_names(^node_a$)"), {"node_a"}),
    "plain selector": (variable("x", query='a{job="x"}'), {"a"}),
    "other data source": (variable("x", query="select a from b", datasource={"type": "mysql"}), set()),
    "fields alone": (variable("x", query={"qryType": 1, "label": "instance", "metric": "a"}), {"a"}),
    "data source variable": (variable("x", "datasource", query="prometheus"), set()),
    "constant": (variable("x", "constant", query="a"), set()),
}


@pytest.mark.parametrize("name", VARIABLES)
def test_query_of_a_variable_reads_its_metrics(name: str) -> None:
    definition, expected = VARIABLES[name]
    assert reads(templated(definition)) == expected


def test_values_of_a_label_need_the_metrics_that_have_it() -> None:
    [question] = questions(templated(variable("x", query="label_values(namespace)")))
    assert [each.label for each in question.query.selections] == ["namespace"]


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        (variable("n", "custom", query="a, b"), {"node_a", "node_b"}),
        (variable("n", "custom", query="First : a,Second : b"), {"node_a", "node_b"}),
        (variable("n", "custom", query="a", options=[{"value": "$__all"}, {"value": "b"}]), {"node_a", "node_b"}),
        (variable("n", "custom", query="a", includeAll=True, allValue=".*"), {"node_a", "node_b"}),
        (variable("n", "custom", query="a", current={"value": ["b", "$__all"]}), {"node_a", "node_b"}),
        (variable("n", "constant", query="b"), {"node_b"}),
        (variable("n", "textbox", query="b"), {"node_a", "node_b"}),
        (variable("n", query="label_values(up, x)"), {"node_a", "node_b"}),
        (variable("n", "switch", enabledValue="a", disabledValue="c", current={"value": "a"}), {"node_a"}),
    ],
)
def test_known_values_of_a_variable_limit_the_names(definition: dict[str, Any], expected: set[str]) -> None:
    assert reads(templated(definition, panels=[panel("node_$n")])) - {"up"} == expected


@pytest.mark.parametrize(
    "text", ["a > $limit", "topk($limit, a)", "a * ${limit}", "a[$step] offset $step", "clamp_max(a, $limit)"]
)
def test_variables_that_are_numbers_do_not_stand_for_metrics(text: str) -> None:
    variables = (variable("limit", "textbox", query="5"), variable("step", "interval", query="1m,auto"))
    document = templated(*variables, panels=[panel(text)])
    assert (reads(document), questions(document)[0].query.doubt) == ({"a"}, "")


@pytest.mark.parametrize(
    ("source", "counts"),
    [
        (PROMETHEUS, True),
        (LOKI, False),
        (None, True),
        ("Prometheus", True),
        ("${DS_PROM}", True),
        ("${DS_LOKI}", False),
        ({"uid": "${DS_LOKI}"}, False),
        ("$logs", False),
        ({"type": "loki", "uid": "${logs}"}, False),
        ({"type": "${kind}", "uid": "$logs"}, False),
        ({"type": "victoriametrics-metrics-datasource", "uid": "v"}, True),
        ({"type": "datasource", "uid": "-- Mixed --"}, True),
        ("other", False),
        ({"type": "prometheus", "uid": "other"}, False),
        ("-- Grafana --", True),
    ],
)
def test_queries_of_other_data_sources_do_not_count(source: Any, counts: bool) -> None:
    inputs = [
        {"name": "DS_PROM", "type": "datasource", "pluginId": "prometheus"},
        {"name": "DS_LOKI", "type": "datasource", "pluginId": "loki"},
    ]
    variables = [
        variable("logs", "datasource", query="loki"),
        variable("j", query="label_values(b, x)", datasource=source),
    ]
    document = templated(*variables, __inputs=inputs, panels=[panel("a", datasource=source)])
    assert reads(document, others=("other",)) == ({"a", "b"} if counts else set())


def test_a_target_overrides_the_data_source_of_its_panel() -> None:
    targets = [{"expr": "a", "datasource": PROMETHEUS}, {"expr": "b", "datasource": LOKI}, {"expr": "c"}]
    mixed = {"type": "datasource", "uid": "-- Mixed --"}
    assert reads(templated(panels=[{"datasource": mixed, "targets": targets}])) == {"a", "c"}
    assert reads(templated(panels=[{"datasource": LOKI, "targets": targets}])) == {"a"}


@pytest.mark.parametrize("source", [PROMETHEUS, {"uid": "$ds"}, "Prometheus"])
def test_source_of_a_panel_wins_over_what_its_query_still_says(source: Any) -> None:
    expression = {"type": "math", "expr": "c", "datasource": {"type": "__expr__", "uid": "__expr__"}}
    inner = {"title": "x", "datasource": LOKI, "targets": [{"expr": "b"}]}
    targets = [{"expr": "a", "datasource": LOKI}, expression]
    assert reads(templated(panels=[{"datasource": source, "targets": targets, "panels": [inner]}])) == {"a"}
    same = [{"datasource": {"uid": "l1"}, "targets": [{"expr": "a", "datasource": LOKI}]}]
    assert reads(templated(panels=same)) == set()


@pytest.mark.parametrize("kind", ["v2", "v2alpha1"])
def test_queries_of_other_groups_do_not_count_in_schema_v2(kind: str) -> None:
    spec = {"expr": '{app="x"} |= "a"'}
    query = {"kind": "DataQuery", "group": "loki", "spec": spec} if kind == "v2" else {"kind": "loki", "spec": spec}
    assert reads(v2(v2_panel(query))) == set()


def test_source_of_a_query_names_dashboard_and_panel() -> None:
    document = templated(variable("x", query="label_values(up, job)"), panels=[panel("a")])
    assert [each.source for each in questions(document)] == ["file.json: Nodes: variable x", "file.json: Nodes: Load"]


def test_rules_of_prometheus_and_loki_are_not_queries_of_grafana() -> None:
    rule = {"groups": [{"name": "g", "rules": [{"record": "r", "expr": "a"}, {"alert": "A", "expr": "b"}]}]}
    loki = {
        "apiVersion": "loki.grafana.com/v1",
        "kind": "AlertingRule",
        "spec": {"groups": [{"rules": [{"expr": "c"}]}]},
    }
    assert reads([rule, loki]) == set()


def test_dashboard_that_is_elsewhere_may_read_everything() -> None:
    [question] = questions({"kind": "GrafanaDashboard", "spec": {"url": "https://example.org/a.json"}})
    assert question.query.doubt
    assert all(each.reads_name("anything") for each in question.query.selections)


def test_dashboard_that_cannot_be_unpacked_is_an_error() -> None:
    with pytest.raises(ValueError, match="gzipJson"):
        questions({"kind": "GrafanaDashboard", "spec": {"gzipJson": PACKED[:40]}})


@pytest.mark.slow
def test_references_that_stand_for_very_many_parts_are_refused() -> None:
    text = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 20)}]\n" for n in range(1, 8))
    with pytest.raises(ValueError, match="parts"):
        list(dashboard_questions(yaml.safe_load(text), "bomb.yaml", parts_max=50_000))
