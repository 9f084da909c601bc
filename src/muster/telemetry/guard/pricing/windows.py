"""When the selectors of an operation read: windows of time, and how often the server evaluates them.

The rules are those of Prometheus' engine (promql/engine.go). A subquery is evaluated once over all it covers, at its
own step. What `@` fixes is evaluated once. An instant selector looks back by the lookback delta.
"""

from __future__ import annotations

from typing import Final

import msgspec

from muster.telemetry.guard.query.operation import Operation
from muster.telemetry.promql.selector import At, Selector

SUBQUERY_STEP_S: Final = 30.0
"""Step of a subquery without one. The server takes its evaluation interval, which it does not report."""
EARLIEST_RANGE_S: Final = 365 * 86400.0
"""How far back "all time" reaches if the server does not report its retention."""


class Window(msgspec.Struct, frozen=True):
    """When one selector reads.

    Attributes:
        oldest_s: Unix time of the oldest sample that it may read.
        newest_s: of the newest.
        evaluations: how often it is evaluated: points per series.
        range_s: range of each evaluation; 0 for an instant selector.
        reads: points per series that functions around subqueries read.
    """

    oldest_s: float
    newest_s: float
    evaluations: int
    range_s: float = 0.0
    reads: int = 0

    @property
    def span_s(self) -> float:
        """Seconds between the oldest and the newest sample."""
        return self.newest_s - self.oldest_s


def windows(operation: Operation, default_range_s: float) -> tuple[Window, ...]:
    """Return the window of each selector of the operation, in their order."""
    start_s, end_s = bounds(operation, default_range_s)
    if operation.kind in ("query", "query_range"):
        return tuple(_window(each, start_s, end_s, operation) for each in operation.selectors)
    if operation.kind == "remote_read":
        return tuple(_fixed(each, operation.now_s) for each in operation.selectors)
    if operation.kind == "federate":
        return tuple(Window(end_s - operation.lookback_s, end_s, 1) for _ in operation.selectors)
    return tuple(Window(start_s, end_s, 1) for _ in operation.selectors)


def constant_windows(operation: Operation) -> tuple[Window, ...]:
    """Return the windows of constants within subqueries: the server evaluates them, although they read no series."""
    expression, (start_s, end_s) = operation.expression, bounds(operation, 0.0)
    if expression is None or operation.kind not in ("query", "query_range"):
        return ()
    return tuple(_window(Selector((), subqueries=each), start_s, end_s, operation) for each in expression.constants)


def bounds(operation: Operation, default_range_s: float) -> tuple[float, float]:
    """Return start and end, with a default where the request has none."""
    end_s = operation.end_s if operation.end_s is not None else max(operation.now_s, operation.start_s or 0.0)
    start_s = operation.start_s if operation.start_s is not None else end_s - default_range_s
    return min(start_s, end_s), end_s


def steps(operation: Operation) -> int:
    """Return the points per series of the answer."""
    if operation.step_s <= 0 or operation.start_s is None or operation.end_s is None:
        return 1
    return _count(operation.end_s - operation.start_s, operation.step_s)


def _count(span_s: float, step_s: float) -> int:
    return int(span_s / step_s + 1e-9) + 1


def _fixed(selector: Selector, now_s: float) -> Window:
    end_s = selector.at if isinstance(selector.at, float) else now_s
    return Window(end_s - selector.range_s, end_s, 1, selector.range_s)


def _window(selector: Selector, start_s: float, end_s: float, operation: Operation) -> Window:
    first_s, last_s, count, reads = start_s, end_s, steps(operation), 0
    for each in selector.subqueries:
        if each.at is not None:
            first_s = last_s = _at(each.at, start_s, end_s)
            count = 1
        step_s = each.step_s or SUBQUERY_STEP_S
        reads += count * max(int(each.range_s / step_s), 1)
        first_s, last_s = first_s - each.offset_s - each.range_s, last_s - each.offset_s
        count = _count(last_s - first_s, step_s)
    if selector.at is not None:
        first_s = last_s = _at(selector.at, start_s, end_s)
        count = 1
    back_s = selector.range_s or operation.lookback_s
    return Window(first_s - selector.offset_s - back_s, last_s - selector.offset_s, count, selector.range_s, reads)


def _at(at: At, start_s: float, end_s: float) -> float:
    if at == "start":
        return start_s
    return end_s if at == "end" else float(at)
