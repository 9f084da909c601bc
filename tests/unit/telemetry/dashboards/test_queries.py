"""Issue 17.C: queries of dashboards are cheap on large clusters and follow the variables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import promql_parser
import pytest

from muster.telemetry.dashboards.boards.all import DASHBOARDS
from muster.telemetry.dashboards.dashboard import Dashboard
from muster.telemetry.dashboards.panel import Panel, Query

BOUNDED: Final = frozenset(
    re.findall(
        r"\w+",
        "action allowed area caller cause check class cluster code command controller count direction endpoint error "
        "fault files group how job le level loop media namespace operation outcome phase pool problem reason resource "
        "result review rule rung source stage state team use verb verdict which whose why",
    )
)
"""Labels whose values do not grow with nodes or pods. `pod` and `instance` need topk, or few processes."""
each_dashboard = pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda each: each.name)


def queries(dashboard: Dashboard) -> Iterator[tuple[Panel, Query]]:
    for panel in dashboard.panels():
        for query in panel.queries:
            yield panel, query


def parsed(expr: str) -> Any:
    """As the parser reads it, with the variables that are durations filled in."""
    return promql_parser.parse(expr.replace("$__rate_interval", "1m").replace("$__range", "1h"))


def selectors(node: Any) -> Iterator[Any]:
    """Vector selectors below a node of the parser."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "param", "vector_selector"):
        below = getattr(node, name, None)
        if below is not None:
            yield from selectors(below)
    for argument in getattr(node, "args", None) or ():
        yield from selectors(argument)


@each_dashboard
def test_every_selector_names_one_metric_and_follows_the_variables(dashboard: Dashboard) -> None:
    """So a query never reads all series, and a person who chose a cluster sees only that one."""
    names = {each.name for each in dashboard.variables}
    for panel, query in queries(dashboard):
        found = list(selectors(parsed(query.expr)))
        assert found, panel.title
        for selector in found:
            assert selector.name, (panel.title, query.expr)
            matchers = {each.name: each.value for each in selector.matchers.matchers}
            assert matchers["cluster"] == "$cluster", (panel.title, selector.name)
            assert matchers.get("namespace", "$namespace") == "$namespace"
            if "namespace" not in matchers:
                assert selector.name in TRAFFIC, (panel.title, selector.name)
        assert set(re.findall(r"\$(?!__)(\w+)", query.expr)) <= names


TRAFFIC: Final = ("muster_network_bytes_total", "muster_network_packets_total", "muster_network_pod_bytes_total")
"""Their label `namespace` is that of a job."""


@each_dashboard
def test_results_do_not_grow_with_nodes(dashboard: Dashboard) -> None:
    for panel, query in queries(dashboard):
        for labels in _grouped_by(query.expr):
            if labels - BOUNDED - {"cluster"} and not re.match(r"(topk|bottomk)\(", query.expr.removeprefix("or_zero")):
                assert labels - BOUNDED == {"pod"}, (panel.title, labels)
                assert "muster_leader" in query.expr, "there are a few controllers"
        outermost = parsed(query.expr)
        assert _aggregates(outermost), (panel.title, query.expr)


def _grouped_by(expr: str) -> list[set[str]]:
    return [set(re.split(r"[,\s]+", each.strip())) for each in re.findall(r"\bby \(([^)]*)\)", expr)]


def _aggregates(node: Any) -> bool:
    """Whether every vector in the result comes out of an aggregation."""
    if isinstance(node, promql_parser.AggregateExpr | promql_parser.NumberLiteral):
        return True
    if isinstance(node, promql_parser.BinaryExpr):
        return _aggregates(node.lhs) and _aggregates(node.rhs)
    if isinstance(node, promql_parser.ParenExpr | promql_parser.UnaryExpr):
        return _aggregates(node.expr)
    if isinstance(node, promql_parser.Call):
        return node.func.name in ("time", "vector") or _aggregates(node.args[-1])
    return False


@each_dashboard
def test_rates_follow_the_interval_of_scrapes(dashboard: Dashboard) -> None:
    """$__rate_interval is at least four scrapes; a fixed range would be empty with a longer interval."""
    for panel, query in queries(dashboard):
        for window in re.findall(r"\[([^\]]+)\]", query.expr):
            assert window in ("$__rate_interval", "$__range", "10m", "1h"), panel.title
