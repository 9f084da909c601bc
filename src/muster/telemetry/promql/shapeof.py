"""From the tree of promql-parser to the shape of an expression."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Final, Literal

import promql_parser

from muster.telemetry.promql.kept import ALL, NOTHING, Kept, kept_only, kept_without
from muster.telemetry.promql.matcher import NAME_LABEL
from muster.telemetry.promql.nodes import bare, string_of
from muster.telemetry.promql.shape import Kind, Shape

_CALLS: Final[dict[str, Kind]] = {
    **dict.fromkeys(("absent", "absent_over_time", "vector"), "single"),
    **dict.fromkeys(("scalar", "time", "pi"), "scalar"),
}
_BUCKETS: Final = frozenset({"histogram_quantile", "histogram_fraction"})
"""Functions that make one series of all buckets of a classic histogram."""
_NAMED: Final = frozenset(
    {
        "last_over_time", "first_over_time", "label_replace", "label_join", "sort", "sort_desc", "sort_by_label",
        "sort_by_label_desc", "info",
    }
)  # fmt: skip
"""Functions that keep the metric name."""
_FLOAT_CALLS: Final = frozenset(
    {
        "count_over_time", "present_over_time", "timestamp", "changes", "resets", "min_over_time", "max_over_time",
        "stddev_over_time", "stdvar_over_time", "quantile_over_time", "deriv", "predict_linear", "mad_over_time", "abs",
    }
)  # fmt: skip
"""Functions that give no native histograms, beside those of the name `histogram_...`."""
_FLOAT_AGGREGATIONS: Final = frozenset(
    {"count", "group", "min", "max", "topk", "bottomk", "quantile", "stddev", "stdvar"}
)
_TOP: Final = frozenset({"topk", "bottomk", "limitk"})
_SETS: Final[dict[str, Kind]] = {"or": "union", "and": "left", "unless": "left"}
_COMPARISONS: Final = frozenset({"==", "!=", "<", "<=", ">", ">="})
_UNNAMED: Final = kept_without((NAME_LABEL,))


def shape_of(root: Any) -> Shape:
    """Return the shape of an expression. Selectors are numbered in the order of the text."""
    return _shape(root, itertools.count())


def _shape(node: Any, numbers: Iterator[int]) -> Shape:
    match node:
        case promql_parser.VectorSelector() | promql_parser.MatrixSelector():
            return Shape("selector", next(numbers))
        case promql_parser.ParenExpr() | promql_parser.SubqueryExpr():
            return _shape(node.expr, numbers)
        case promql_parser.UnaryExpr():
            return _shape_of_negative(_shape(node.expr, numbers))
        case promql_parser.Call():
            return _call(node, numbers)
        case promql_parser.AggregateExpr():
            return _aggregation(node, numbers)
        case promql_parser.BinaryExpr():
            return _pair(node, numbers)
    return Shape("scalar")


def _shape_of_negative(inner: Shape) -> Shape:
    return inner if inner.is_scalar else Shape("function", kept=_UNNAMED, inner=(inner,))


def _call(node: Any, numbers: Iterator[int]) -> Shape:
    name = node.func.name
    inner = tuple(_shape(each, numbers) for each in node.args)
    if name in _CALLS or not inner:
        return Shape(_CALLS.get(name, "single"), inner=inner)
    written = ""
    sources: tuple[str, ...] | None = None
    if name == "label_replace":
        written, sources = string_of(node.args[1]), (string_of(node.args[3]),)
    elif name == "label_join":
        written, sources = string_of(node.args[1]), tuple(string_of(each) for each in node.args[3:])
    kept = ALL if name in _NAMED else _UNNAMED
    if name in _BUCKETS:
        kept = kept_without((NAME_LABEL, "le"))
    floats = name.startswith("histogram_") or name in _FLOAT_CALLS
    return Shape("function", kept=kept, written=written, sources=sources, floats=floats, inner=inner)


def _aggregation(node: Any, numbers: Iterator[int]) -> Shape:
    parameter = _shape(node.param, numbers) if node.param is not None else None
    inner = (_shape(node.expr, numbers), *([parameter] if parameter else []))
    name = str(node.op).lower()
    floats = name in _FLOAT_AGGREGATIONS
    if name == "limit_ratio":
        return Shape("left", inner=inner)
    kept = NOTHING
    if node.modifier is not None:
        by = node.modifier.type == promql_parser.AggModifierType.By
        kept = kept_only(node.modifier.labels) if by else kept_without((NAME_LABEL, *node.modifier.labels))
    if name == "count_values":
        written = string_of(node.param)
        return Shape("function", kept=_with(kept, written), written=written, floats=True, inner=inner[:1])
    if name in _TOP:
        number = bare(node.param)
        k = max(number.val, 1.0) if isinstance(number, promql_parser.NumberLiteral) else None
        return Shape("top", kept=kept, k=None if k is None or math.isnan(k) else k, floats=floats, inner=inner)
    return Shape("group", kept=kept, floats=floats, inner=inner)


def _with(kept: Kept, label: str) -> Kept:
    labels = set(kept.labels)
    return kept_only(labels | {label}) if kept.only else kept_without(labels - {label})


def _pair(node: Any, numbers: Iterator[int]) -> Shape:
    inner = (_shape(node.lhs, numbers), _shape(node.rhs, numbers))
    name, modifier = str(node.op).lower(), node.modifier
    if name in _SETS:
        return Shape(_SETS[name], inner=inner)
    compares = name in _COMPARISONS and not (modifier is not None and modifier.return_bool)
    named = ALL if compares else _UNNAMED
    if modifier is None:
        return Shape("pair", kept=named, floats=compares, inner=inner)
    matching = modifier.matching
    on = matching is not None and matching.type == promql_parser.LabelModifierType.Include
    many = _many(modifier.card)
    if many is None:
        return Shape("pair", kept=named.then(_matched(matching, on)), floats=compares, inner=inner)
    sources = tuple(matching.labels) if on else None
    copied = tuple(modifier.group_labels or ())
    return Shape("pair", kept=named, many=many, sources=sources, copied=copied, floats=compares, inner=inner)


def _many(cardinality: Any) -> Literal["left", "right"] | None:
    if cardinality == promql_parser.VectorMatchCardinality.ManyToOne:
        return "left"
    return "right" if cardinality == promql_parser.VectorMatchCardinality.OneToMany else None


def _matched(matching: Any, on: bool) -> Kept:
    if matching is None:
        return ALL
    return kept_only(matching.labels) if on else kept_without(matching.labels)
