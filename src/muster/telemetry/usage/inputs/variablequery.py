"""Queries of Grafana's query variables: `label_values()`, `metrics()`, `query_result()`, and plain selectors."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from muster.telemetry.promql.matcher import NAME_LABEL
from muster.telemetry.usage.query import Query, read_query
from muster.telemetry.usage.selection import EVERYTHING, Selection, matching
from muster.telemetry.usage.variables import Values, fill, has_place, has_variable

_CALL: Final = re.compile(r"\s*(label_values|label_names|metrics|query_result)\s*\((.*)\)\s*", re.DOTALL)
_LABEL: Final = re.compile(r"[a-zA-Z_]\w*")


def read_variable_query(text: str, variables: Mapping[str, Values]) -> Query:
    """Read the query of a variable ("Prometheus template variables" in Grafana's documentation)."""
    found = _CALL.fullmatch(text)
    if found is None:
        return read_query(text, variables)
    call, inside = found[1], found[2].strip()
    if call == "query_result":
        return read_query(inside, variables)
    if call == "metrics":
        return _names(inside, variables)
    if call == "label_names":
        return _names(inside, variables) if inside else Query(frozenset({EVERYTHING}))
    series, comma, label = inside.rpartition(",")
    if comma:
        return read_query(series, variables)
    label = label.strip()
    if label == NAME_LABEL or has_variable(label):
        return Query(frozenset({EVERYTHING}))
    if _LABEL.fullmatch(label) is None:
        return Query(frozenset({EVERYTHING}), "the label cannot be read")
    return Query(frozenset({Selection(label=label)}))


def _names(pattern: str, variables: Mapping[str, Values]) -> Query:
    """Return metrics with a part that matches a pattern: Grafana does not anchor it."""
    filled = fill(f'"{pattern}"', variables)
    doubt = "a variable is part of a metric's name" if has_place(filled.text) else ""
    return Query(frozenset({matching(f".*(?:{filled.regex_pattern(filled.text[1:-1])}).*")}), doubt)
