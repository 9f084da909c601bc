"""Reads one query: which metrics it reads, or could read if it has variables or cannot be parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from muster.telemetry.prometheus.probe import PROBE_LABEL
from muster.telemetry.promql.errors import BadQuery
from muster.telemetry.promql.expression import parse_expression
from muster.telemetry.promql.matcher import NAME_LABEL, Matcher
from muster.telemetry.usage.lexical import possible_selections
from muster.telemetry.usage.pattern import known
from muster.telemetry.usage.selection import EVERYTHING, JOB_LABEL, Selection, named
from muster.telemetry.usage.variables import ANY, Filled, Values, fill, has_place, in_class

_DEPTH_MAX: Final = 3
_INFO_METRIC: Final = "target_info"
"""The metric that `info()` reads by default ("Functions" in the documentation of Prometheus)."""


@dataclass(frozen=True)
class Query:
    """Metrics that a query reads.

    Attributes:
        selections: of these metrics, and perhaps of more.
        doubt: why they may be too many; "" if the query was understood.
    """

    selections: frozenset[Selection]
    doubt: str = ""


def read_query(text: str, variables: Mapping[str, Values] | None = None) -> Query:
    """Read a query; `variables` are those of its dashboard. A query that only counts series for Muster reads none."""
    return _read(text, variables or {}, 0)


def _read(text: str, variables: Mapping[str, Values], depth: int) -> Query:
    filled = fill(text, variables)
    doubts: list[str] = []
    selections: set[Selection] = set()
    try:
        expression = parse_expression(filled.text)
        if "info" in expression.functions:
            selections.add(named(_INFO_METRIC))
        for selector in expression.selectors:
            for matchers in selector.matchers:
                if _counts_for_muster(matchers):
                    continue
                selections.add(_selection(matchers, filled))
                names = [each for each in matchers if each.name == NAME_LABEL]
                if any(_any_name(each, filled) for each in names):
                    doubts.append("a variable is part of a metric's name")
                elif not all(known(each) for each in names):
                    doubts.append("its pattern of names is too complex to be evaluated here")
    except BadQuery as error:
        selections = possible_selections(filled)
        doubts.append(f"cannot be parsed: {error}")
    for value in filled.expressions:
        if depth < _DEPTH_MAX:
            inner = _read(value, variables, depth + 1)
            selections |= inner.selections
            doubts += [inner.doubt] if inner.doubt else []
        else:
            selections.add(EVERYTHING)
            doubts.append("its variables contain each other")
    return Query(frozenset(selections), doubts[0] if doubts else "")


def _counts_for_muster(matchers: Sequence[Matcher]) -> bool:
    return any(each.name == PROBE_LABEL and each.op == "=" and not each.value for each in matchers)


def _any_name(matcher: Matcher, filled: Filled) -> bool:
    """Returns whether a condition on the name contains a variable without known values."""
    return has_place(matcher.value) and ANY in filled.regex_pattern(matcher.value)


def _selection(matchers: Sequence[Matcher], filled: Filled) -> Selection:
    names = [_condition(each, filled) for each in matchers if each.name == NAME_LABEL]
    jobs = [each for each in matchers if each.name == JOB_LABEL and not has_place(each.value)]
    return Selection(tuple(each for each in names if each is not None), tuple(jobs))


def _condition(matcher: Matcher, filled: Filled) -> Matcher | None:
    """Return a condition on the name with patterns in its places; None if it then excludes no name for certain."""
    if not has_place(matcher.value):
        return matcher
    if matcher.op not in ("=", "=~") or (matcher.op == "=~" and in_class(matcher.value)):
        return None
    pattern = filled.literal_pattern(matcher.value) if matcher.op == "=" else filled.regex_pattern(matcher.value)
    return Matcher(NAME_LABEL, "=~", pattern)
