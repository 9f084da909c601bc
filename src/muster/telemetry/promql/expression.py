"""Parses PromQL with promql-parser into structs of ours."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

import msgspec
import promql_parser

from muster.telemetry.promql.errors import BadQuery
from muster.telemetry.promql.matcher import NAME_LABEL, Matcher, Op
from muster.telemetry.promql.nodes import bare
from muster.telemetry.promql.result import ONE, Result, result_of
from muster.telemetry.promql.selector import At, Selector, Subquery
from muster.telemetry.promql.shapeof import shape_of
from muster.telemetry.promql.text import normalise
from muster.telemetry.promql.writtenlabels import written_bytes

_OPS: Final[tuple[tuple[promql_parser.MatchOp, Op], ...]] = (
    (promql_parser.MatchOp.Equal, "="),
    (promql_parser.MatchOp.NotEqual, "!="),
    (promql_parser.MatchOp.Re, "=~"),
    (promql_parser.MatchOp.NotRe, "!~"),
)
_MAX_RANGE_S: Final = 1000 * 365 * 86400.0


class Expression(msgspec.Struct, frozen=True):
    """A parsed expression.

    Attributes:
        text: as it was sent.
        selectors: every selector in it, in the order of the text.
        functions: names of the functions and aggregations in it.
        labels: labels that `by`, `without`, `on`, `ignoring`, `group_left` and `group_right` name.
        result: the series of its result.
        parts: of the result, those that are label sets of a selector.
        matrix: whether the result is a range vector, so an instant query returns every sample.
        constants: for each number and each `time()` within subqueries, those subqueries, the outermost first.
        written_bytes: of labels that the expression writes into one series at most.
    """

    text: str
    selectors: tuple[Selector, ...]
    functions: frozenset[str] = frozenset()
    labels: frozenset[str] = frozenset()
    result: Result = ONE
    parts: tuple[Result, ...] = ()
    matrix: bool = False
    constants: tuple[tuple[Subquery, ...], ...] = ()
    written_bytes: int = 0


def parse_expression(text: str) -> Expression:
    """Parse an expression. Raises BadQuery with the reason."""
    return _read_short(text) if len(text) <= _SHORT else _read_long(text)


_SHORT: Final = 4096


@functools.lru_cache(maxsize=512)
def _read_short(text: str) -> Expression:
    return _read(text)


@functools.lru_cache(maxsize=16)
def _read_long(text: str) -> Expression:
    return _read(text)


def _read(text: str) -> Expression:
    root = _parse(text)
    selectors: list[Selector] = []
    functions: set[str] = set()
    labels: set[str] = set()
    constants: list[_Around] = []
    for node, around in _walk(root):
        match node:
            case promql_parser.VectorSelector():
                selectors.append(_selector(node, 0.0, around))
            case promql_parser.MatrixSelector():
                selectors.append(_selector(node.vector_selector, _seconds(node.range), around))
            case promql_parser.Call():
                functions.add(node.func.name)
                if around and not node.args:
                    constants.append(around)
            case promql_parser.NumberLiteral() if around:
                constants.append(around)
            case promql_parser.AggregateExpr():
                functions.add(str(node.op))
                labels.update(node.modifier.labels if node.modifier else ())
            case promql_parser.BinaryExpr() if node.modifier:
                labels.update(node.modifier.matching.labels if node.modifier.matching else ())
                labels.update(node.modifier.group_labels or ())
    result = result_of(shape_of(root))
    matrix = isinstance(bare(root), promql_parser.MatrixSelector | promql_parser.SubqueryExpr)
    return Expression(
        text,
        tuple(selectors),
        frozenset(functions),
        frozenset(labels),
        result,
        tuple(result.selected()),
        matrix,
        tuple(constants),
        written_bytes(root),
    )


def parse_selector(text: str) -> Selector:
    """Parse the selector of a `match[]`. Raises BadQuery; also for anything that is more than an instant selector."""
    expression = _parse(text)
    if not isinstance(expression, promql_parser.VectorSelector) or expression.offset or expression.at:
        raise BadQuery(f"{text[:100]!r} is not a series selector")
    return _selector(expression, 0.0, ())


@functools.cache
def _old_functions() -> None:
    """Register functions that Prometheus 2 has and Prometheus 3 renamed."""
    types = promql_parser.ValueType
    old = promql_parser.Function("holt_winters", [types.Matrix, types.Scalar, types.Scalar], types.Vector)
    promql_parser.register_extra_functions([old])


def _parse(text: str) -> Any:
    _old_functions()
    try:
        return promql_parser.parse(normalise(text))
    except BadQuery:
        raise
    except ValueError as error:
        raise BadQuery(str(error)) from error


_Around = tuple[Subquery, ...]


def _walk(root: Any) -> Iterator[tuple[Any, _Around]]:
    """Yield every node with the subqueries around it, without recursion. A range selector hides its vector selector."""
    todo: list[tuple[Any, _Around]] = [(root, ())]
    while todo:
        node, around = todo.pop()
        yield node, around
        children: list[Any] = []
        match node:
            case promql_parser.AggregateExpr():
                children = [node.param, node.expr]
            case promql_parser.BinaryExpr():
                children = [node.lhs, node.rhs]
            case promql_parser.Call():
                children = list(node.args)
            case promql_parser.SubqueryExpr():
                around, children = (*around, _subquery(node)), [node.expr]
            case promql_parser.UnaryExpr() | promql_parser.ParenExpr():
                children = [node.expr]
        todo.extend((each, around) for each in reversed(children) if each is not None)


def _subquery(node: Any) -> Subquery:
    step_s = _seconds(node.step) if node.step is not None else None
    return Subquery(_seconds(node.range), step_s, _seconds(node.offset), _at(node.at))


def _selector(node: Any, range_s: float, around: _Around) -> Selector:
    base = [Matcher(NAME_LABEL, "=", node.name)] if node.name is not None else []
    base += [_matcher(each) for each in node.matchers.matchers]
    groups = node.matchers.or_matchers or [[]]
    alternatives = tuple((*base, *(_matcher(each) for each in group)) for group in groups)
    return Selector(alternatives, range_s, _seconds(node.offset), _at(node.at), around)


def _matcher(node: Any) -> Matcher:
    return Matcher(node.name, next(op for native, op in _OPS if native == node.op), node.value)


def _at(node: Any) -> At | None:
    if node is None:
        return None
    if node.type == promql_parser.AtModifierType.At:
        try:
            at: float = node.at.timestamp()
        except (OverflowError, ValueError) as error:
            raise BadQuery("the time after @ is out of range") from error
        return at
    return "start" if node.type == promql_parser.AtModifierType.Start else "end"


def _seconds(value: timedelta | None) -> float:
    seconds = value.total_seconds() if value is not None else 0.0
    if abs(seconds) > _MAX_RANGE_S:
        raise BadQuery("a duration of more than 1000 years is not supported")
    return seconds
