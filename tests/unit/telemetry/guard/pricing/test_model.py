"""Issue 17, A1: how the size of an answer follows from label sets, time and series that end."""

from __future__ import annotations

import json

import pytest

from muster.telemetry.guard.pricing.capabilities import Capabilities
from muster.telemetry.guard.pricing.count import Count
from muster.telemetry.guard.pricing.head import Head, parse_head
from muster.telemetry.guard.pricing.labelsets import LabelSets
from muster.telemetry.guard.pricing.model import (
    ANSWER_BYTES,
    POINT_ANSWER_BYTES,
    SERIES_BYTES,
    Matched,
    price_of,
)
from muster.telemetry.guard.pricing.windows import windows
from muster.telemetry.guard.query.parsing import parse
from muster.telemetry.promql.kept import Kept, kept_only

NOW_S = 1_800_000_000.0
HOUR_S = 3600.0
SIZES = LabelSets({"zone": 10.0, "pod": 30.0}, {"zone": 2.0, "pod": 20.0})
ZONE, POD = kept_only(["zone"]), kept_only(["pod"])


def head(**values: int) -> Head:
    counted = [{"name": name, "value": value} for name, value in values.items()]
    data = {"headStats": {"numSeries": 100_000}, "labelValueCountByLabelName": counted}
    found = parse_head(json.dumps({"data": data}).encode(), 2000)
    assert found is not None
    return found


def answer_bytes(
    text: str, hours: float, distinct: dict[Kept, int], churn: float = 0.0, covered: float = 1.0, now: int = 100
) -> int:
    """Price a range query of 100 series at 61 steps; `now` of them are left at the end."""
    pairs = [("query", text), ("start", str(NOW_S - hours * HOUR_S)), ("end", str(NOW_S))]
    pairs.append(("step", f"{hours * 60:g}"))
    operation = parse("GET", "/api/v1/query_range", pairs, "", b"", NOW_S)
    (window,) = windows(operation, 0.0)
    counts = (Count(100), Count(100), Count(now)) if now != 100 else (Count(100),)
    matched = Matched(window, counts, churn, covered, distinct, SIZES)
    return price_of(operation, [matched], head(zone=5, pod=10_000), Capabilities()).answer_bytes


def expected(series: float, active: float, label_bytes: float) -> float:
    return ANSWER_BYTES + series * (label_bytes + 2 + SERIES_BYTES) + active * 61 * POINT_ANSWER_BYTES


@pytest.mark.parametrize(
    ("text", "distinct", "series", "active", "label_bytes"),
    [
        ("x", {}, 1100, 100, 40),
        ("sum by (pod) (x)", {POD: 50}, 550, 50, 30),
        ("sum by (zone) (x)", {ZONE: 5}, 5, 5, 10),
        ("sum by (zone) (x)", {}, 5, 5, 10),
        ("sum(x)", {}, 1, 1, 33),
    ],
)
def test_series_that_end_add_label_sets_and_no_points(
    text: str, distinct: dict[Kept, int], series: int, active: int, label_bytes: int
) -> None:
    found = answer_bytes(text, 10, distinct, churn=1.0)
    assert found == pytest.approx(expected(series, active, label_bytes), rel=0.05)


def test_windows_of_functions_see_series_after_their_end() -> None:
    found = answer_bytes("sum by (pod) (rate(x[5h]))", 5, {POD: 50}, churn=1.0)
    assert found == pytest.approx(expected(50 * 11, 50 * 6, 30), rel=0.05)


def test_time_without_samples_has_no_points() -> None:
    assert answer_bytes("x", 10, {}, covered=0.5) == pytest.approx(expected(100, 50, 40), rel=0.01)


def test_series_that_became_fewer_have_fewer_points() -> None:
    assert answer_bytes("x", 20, {}, now=20) == pytest.approx(expected(100, 80, 40), rel=0.01)
