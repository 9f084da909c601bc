"""Recording rules and alerts: from files of Prometheus, from objects of operators, and from the server."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from muster.telemetry.prometheus.answers import RuleGroup
from muster.telemetry.prometheus.durations import seconds_of
from muster.telemetry.usage.inputs.budget import PARTS_MAX, Budget

LOKI_GROUP: Final = "loki.grafana.com"
_EMBEDDED: Final = re.compile(r"^\s*[\"']?groups[\"']?:|[{,]\s*\"groups\"\s*:", re.MULTILINE)
"""A text, as in a ConfigMap or in values of a chart, that contains rules."""
_TEMPLATE: Final = re.compile(r"\{\{.*?\}\}", re.DOTALL)
_QUERIES: Final = re.compile(r"\bquery\b")
_PASSES: Final = re.compile(r"\b(?:query|with|range|template)\b|=")
"""An action with a query, or that may set or pass one."""
_PRINT: Final = re.compile(r"\bprint\b")
_VERB: Final = re.compile(r"%[-+#0]*\d*(?:\.\d+)?[a-zA-Z]")
_LITERAL: Final = re.compile(r'"((?:\\.|[^"\\])*)"|`([^`]*)`', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule.

    Attributes:
        name: of the alert, or of the metric that it records.
        expr: its query.
        records: whether it writes a metric.
        group: its group's name.
        source: where it is, for people.
        templates: queries in the templates of an alert.
        interval_s: seconds between its evaluations, as its group has them; 0 if the group has none.
    """

    name: str
    expr: str
    records: bool
    group: str
    source: str
    templates: tuple[str, ...] = ()
    interval_s: float = 0.0


def document_rules(document: Any, file: str, parts_max: int = PARTS_MAX) -> Iterator[Rule]:
    """Yield the rules of a document, wherever they are: in groups, PrometheusRules, ConfigMaps, values of charts.

    Rules of Grafana have no `expr` of their own, so they are left to the search for Grafana's queries.

    Raises:
        ValueError: it has too many parts.
    """
    yield from _rules(document, "", 0.0, file, Budget(parts_max))


def rule_mistakes(document: Any, file: str) -> Iterator[str]:
    """Yield what is wrong with entries in lists of rules that are not rules, such as one without `expr`.

    The document has as many parts as `document_rules` permits.
    """
    if isinstance(document, list):
        for each in document:
            yield from rule_mistakes(each, file)
    elif isinstance(document, dict) and not is_rule(document):
        rules = document.get("rules")
        for each in rules if isinstance(rules, list) else ():
            if isinstance(each, dict) and not is_rule(each) and ("record" in each or "alert" in each or "expr" in each):
                lacks = "expr" if "expr" not in each else "record or alert"
                called = each.get("record") or each.get("alert") or each.get("expr")
                yield f"{file}: rule {called} has no {lacks}, only {', '.join(map(str, each))}"
        for value in document.values():
            if isinstance(value, dict | list):
                yield from rule_mistakes(value, file)
            elif isinstance(value, str) and _EMBEDDED.search(value) is not None:
                yield from rule_mistakes(yaml.safe_load(value), file)


def is_rule(node: Mapping[str, Any]) -> bool:
    """Returns whether an object is a rule of Prometheus or Loki."""
    return "expr" in node and any(isinstance(node.get(key), str) for key in ("record", "alert"))


def _rules(node: Any, group: str, interval_s: float, file: str, budget: Budget) -> Iterator[Rule]:
    budget.spend()
    if isinstance(node, list):
        for each in node:
            yield from _rules(each, group, interval_s, file, budget)
        return
    if not isinstance(node, dict) or str(node.get("apiVersion", "")).startswith(LOKI_GROUP):
        return
    if is_rule(node):
        yield from _rule(node, group, interval_s, file)
        return
    if isinstance(node.get("rules"), list):
        group, interval_s = str(node.get("name", "")), _interval_s(node.get("interval"))
    for key, value in node.items():
        if isinstance(value, dict | list):
            yield from _rules(value, group, interval_s, file, budget)
        elif isinstance(value, str) and _EMBEDDED.search(value) is not None:
            yield from _rules(yaml.safe_load(value), "", 0.0, f"{file}: {key}", budget)


def _rule(rule: Mapping[str, Any], group: str, interval_s: float, file: str) -> Iterator[Rule]:
    expr, called = rule["expr"], rule.get("record") or rule.get("alert")
    if isinstance(expr, str | int | float) and isinstance(called, str):
        texts = [*_texts(rule.get("annotations")), *_texts(rule.get("labels"))]
        kind = "rule" if "record" in rule else "alert"
        templates = tuple(template_queries(texts))
        yield Rule(called, str(expr), "record" in rule, group, f"{file}: {kind} {called}", templates, interval_s)


def _interval_s(duration: object) -> float:
    try:
        return seconds_of(str(duration)) if duration else 0.0
    except ValueError:
        return 0.0


def server_rules(groups: Iterable[RuleGroup]) -> Iterator[Rule]:
    """Yield the rules that the server evaluates."""
    for group in groups:
        for each in group.rules:
            records = each.type == "recording"
            texts = [*each.annotations.values(), *each.labels.values()]
            source = f"the server: {'rule' if records else 'alert'} {each.name}"
            templates = tuple(template_queries(texts))
            yield Rule(each.name, each.query, records, group.name, source, templates, group.interval)


def template_queries(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts between quotes in templates that call `query`: each may be a query, or its format.

    The query may also be a value that another action sets or passes. A verb of `printf`, such as `%s`, becomes a
    variable that can be anything; so does what `print` may add to a text.
    """
    for text in texts:
        actions = _TEMPLATE.findall(text)
        if not any(map(_QUERIES.search, actions)):
            continue
        for action in filter(_PASSES.search, actions):
            for found in _LITERAL.finditer(action):
                literal = found[2] if found[1] is None else found[1].replace('\\"', '"')
                query = _VERB.sub("${verb}", literal)
                yield f"${{verb}}{query}${{verb}}" if _PRINT.search(action) else query


def _texts(value: Any) -> list[str]:
    return [each for each in value.values() if isinstance(each, str)] if isinstance(value, dict) else []
