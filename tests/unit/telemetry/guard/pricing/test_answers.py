"""Issue 17, A1: how large the result of an expression is."""

from __future__ import annotations

import pytest

from muster.telemetry.guard.pricing.answers import Size, size_of
from muster.telemetry.promql.expression import parse_expression
from muster.telemetry.promql.kept import Kept
from muster.telemetry.promql.result import Result

SERIES = {"x": 100, "y": 3}
VALUES = {"l": 7, "m": 2, "le": 10}


def sets(kept: Kept, series: int) -> int:
    """Label sets of series that have every combination of values."""
    if not kept.only:
        return series // 10 if "le" in kept.labels else series
    found = 1
    for label in kept.labels:
        found *= VALUES.get(label, series)
    return min(found, series)


def size(text: str) -> Size:
    found = parse_expression(text)
    names = [min(each.names() or ()) for each in found.selectors]

    def selected(part: Result) -> Size:
        number = sets(part.kept, SERIES[names[part.selector]])
        return Size(number, number / 2, 10.0 * len(part.kept.labels), 500.0 if names[part.selector] == "y" else 26.0)

    return size_of(found.result, selected, Size(1, 1, 35.0, 26.0))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x", 100), ("rate(x[5m])", 100), ("sum(x)", 1), ("sum by (l) (x)", 7), ("sum by (l, m) (x)", 14),
        ("sum by (unknown) (x)", 100), ("sum without (l) (x)", 100), ("topk(5, x)", 5), ("topk by (l) (5, x)", 35),
        ("topk(scalar(y), x)", 100), ("x or y", 103), ("x and y", 100), ("y unless x", 3), ("x / y", 3),
        ("x > 1", 100), ("absent(x)", 1), ("1 + 1", 1), ("count_values('v', x)", 100), ("(-x)", 100),
        ("max_over_time(x[1h:1m])", 100), ("topk(NaN, x)", 100), ("x + sum(y)", 1), ("x * on (l) group_left () y", 100),
        ("histogram_quantile(0.9, x)", 10), ("count by (l) (topk(2, x))", 2), ("topk(2, sum by (l) (x))", 2),
        ("vector(1)", 1), ("x or vector(0)", 101), ("clamp_max(x, scalar(y))", 100),
        ("label_replace(x, 'a', '', 'b', '')", 100),
    ],
)  # fmt: skip
def test_result_has_the_series_that_its_parts_give(text: str, expected: int) -> None:
    assert size(text).series == expected


def test_union_has_the_mean_size_of_its_parts() -> None:
    found = size("sum by (l) (x) or sum by (l) (y)")
    assert (found.series, found.active, found.label_bytes) == (10, 5, 10.0)
    assert found.point_bytes == pytest.approx((7 * 26 + 3 * 500) / 10)


def test_join_has_the_labels_of_its_smaller_side() -> None:
    assert size("x / on (l) y").series == 3
    assert size("x / on (l) y").point_bytes == 500.0


def test_top_bounds_active_series_as_well() -> None:
    assert (size("topk(5, x)").active, size("topk(80, x)").active) == (5, 50)
