"""Issue 17, A1: when selectors read, by the rules of Prometheus' engine."""

from __future__ import annotations

import pytest

from muster.telemetry.guard.pricing.windows import Window, windows
from muster.telemetry.guard.query.parsing import parse

HOUR_S = 3600.0
RANGE = (("start", "36000"), ("end", "39600"), ("step", "60"))


def window(query: str, *pairs: tuple[str, str]) -> Window:
    path = "/api/v1/query_range" if pairs else "/api/v1/query"
    (found,) = windows(parse("GET", path, [("query", query), *pairs], "", b"", 39_600.0), HOUR_S)
    return found


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("x", Window(39_300, 39_600, 1)),
        ("x offset 1h", Window(35_700, 36_000, 1)),
        ("x offset -1h", Window(42_900, 43_200, 1)),
        ("rate(x[10m])", Window(39_000, 39_600, 1, 600)),
        ("x @ 1000", Window(700, 1000, 1)),
        ("max_over_time(x[1h:1m])", Window(35_700, 39_600, 61, 0, 60)),
        ("max_over_time(x[1h:1m] @ 10000 offset 1m)", Window(6040, 9940, 61, 0, 60)),
        ("max_over_time(rate(x[5m])[1h:1m])", Window(35_700, 39_600, 61, 300, 60)),
        ("max_over_time(x[1h:1m] offset 1d)", Window(35_700 - 86400, 39_600 - 86400, 61, 0, 60)),
        ("max_over_time(sum_over_time(x[10m:1m])[1h:10m])", Window(35_100, 39_600, 71, 0, 6 + 7 * 10)),
        ("max_over_time((x @ 500)[1h:1m])", Window(200, 500, 1, 0, 60)),
    ],
)
def test_window_of_an_instant_query(query: str, expected: Window) -> None:
    assert window(query) == expected


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("x", Window(35_700, 39_600, 61)),
        ("rate(x[5m])", Window(35_700, 39_600, 61, 300)),
        ("x @ start()", Window(35_700, 36_000, 1)),
        ("x @ end()", Window(39_300, 39_600, 1)),
        ("max_over_time(x[10m:10s])", Window(35_100, 39_600, 421, 0, 61 * 60)),
        ("max_over_time(x[10m:10s] @ end())", Window(38_700, 39_600, 61, 0, 60)),
    ],
)
def test_window_of_a_range_query(query: str, expected: Window) -> None:
    assert window(query, *RANGE) == expected


def test_lookback_of_the_request_moves_the_oldest_sample() -> None:
    assert window("x", *RANGE, ("lookback_delta", "10m")).oldest_s == 35_400


def test_metadata_without_a_start_reads_the_default_range() -> None:
    asked = parse("GET", "/api/v1/series", [("match[]", "x"), ("match[]", "y")], "", b"", 39_600.0)
    assert windows(asked, HOUR_S) == (Window(36_000, 39_600, 1),) * 2
