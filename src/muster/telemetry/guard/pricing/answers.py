"""How large the result of an expression is, given the label sets of its selectors. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from muster.telemetry.promql.result import Result


class Size(msgspec.Struct, frozen=True):
    """Series of a result.

    Attributes:
        series: with a point in the window.
        active: at one instant.
        label_bytes: of the label set of each, in an answer.
        point_bytes: of a point.
    """

    series: float
    active: float
    label_bytes: float
    point_bytes: float


def size_of(result: Result, selected: Callable[[Result], Size], one: Size) -> Size:
    """Return the size of a result.

    Args:
        result: of the expression.
        selected: gives the size of a part of kind `selected`.
        one: size of a single series.
    """
    match result.kind:
        case "one":
            return one
        case "selected":
            return selected(result)
    parts = [size_of(each, selected, one) for each in result.inner]
    match result.kind:
        case "least":
            return min(parts, key=_series)
        case "sum":
            return _sum(parts)
        case "top":
            whole, groups = parts
            return msgspec.structs.replace(
                whole,
                series=min(whole.series, math.ceil(groups.series * result.k)),
                active=min(whole.active, math.ceil(groups.active * result.k)),
            )
    return max(parts, key=_series)


def _series(size: Size) -> float:
    return size.series


def _sum(parts: list[Size]) -> Size:
    series, active = sum(each.series for each in parts), sum(each.active for each in parts)
    return Size(
        series,
        active,
        sum(each.label_bytes * each.series for each in parts) / max(series, 1),
        sum(each.point_bytes * each.active for each in parts) / max(active, 1),
    )
