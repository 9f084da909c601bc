"""Issue 17, A1: what a server can do, by what it answers: versions lie, and builds from a module have none."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.telemetry.guard.pricing.capabilities import Capabilities, read_capabilities
from muster.telemetry.guard.pricing.head import parse_head
from muster.telemetry.promql.expression import parse_selector

CUT = b'{"status":"success","data":["__name__"],"warnings":["results truncated due to limit"]}'
WHOLE = b'{"status":"success","data":["__name__","job"]}'


def data(**named: Any) -> bytes:
    return json.dumps({"status": "success", "data": named}).encode()


@pytest.mark.parametrize(
    ("build", "labels", "expected"),
    [
        (data(version="2.42.0+ds", revision="x"), WHOLE, Capabilities("prometheus", "2.42.0+ds")),
        (data(version="2.53.1", revision="x"), CUT, Capabilities("prometheus", "2.53.1", True)),
        (data(version="3.16.0", revision="x"), CUT, Capabilities("prometheus", "3.16.0", True, True)),
        (data(version="", revision=""), CUT, Capabilities("prometheus", "", True, True)),
        (data(version="2.24.0"), b'{"data":["a"]}', Capabilities("victoriametrics", "2.24.0", True)),
        (data(version="2.15.0", revision="x", application="Grafana Mimir"), CUT, Capabilities("mimir", "2.15.0", True)),
        (data(version="0.37.2", revision="x"), WHOLE, Capabilities("thanos", "0.37.2")),
        (data(version="2.53.1", revision="x"), b'{"data":["a"]}', Capabilities("prometheus", "2.53.1")),
        (None, None, Capabilities()),
        (b"<html>", b"[]", Capabilities()),
    ],
)
def test_server_is_known_by_its_answers(build: bytes | None, labels: bytes | None, expected: Capabilities) -> None:
    assert read_capabilities(build, labels, None) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("15d", 15 * 86400.0), ("1h30m", 5400.0), ("30d or 10GiB", 30 * 86400.0), ("10GiB", None), ("", None), (7, None)],
)
def test_retention_by_time_bounds_how_far_back_samples_reach(text: Any, expected: float | None) -> None:
    assert read_capabilities(None, None, data(storageRetention=text)).retention_s == expected


@pytest.mark.slow
@given(
    st.binary(max_size=40) | st.recursive(st.none() | st.text(), st.lists).map(lambda each: json.dumps(each).encode())
)
def test_any_answer_is_read(body: bytes) -> None:
    assert read_capabilities(body, body, body).limits_metadata is False
    assert parse_head(body, 10) is None


def entries(**counts: int) -> list[dict[str, Any]]:
    return [{"name": name.replace("__eq__", "="), "value": value} for name, value in counts.items()]


def head_of(**named: Any) -> Any:
    return parse_head(data(headStats={"numSeries": 1000, "minTime": 5000, "maxTime": 9000}, **named), 3)


COMPLETE = head_of(
    seriesCountByMetricName=entries(a=700, ab=250), seriesCountByLabelValuePair=entries(x__eq__1=600, y__eq__=400)
)
CUT_OFF = head_of(
    seriesCountByMetricName=entries(a=500, b=300, c=100),
    seriesCountByLabelValuePair=entries(x__eq__1=600, x__eq__2=300, z__eq__1=50),
)


@pytest.mark.parametrize(
    ("selector", "complete", "cut"),
    [
        ("a", 700, 500),
        ("d", 0, 100),
        ('{__name__=~"a|d"}', 700, 600),
        ('{__name__=~"a.*"}', 950, 1000),
        ('{__name__=~".+"}', 950, 1000),
        ('a{x="1"}', 600, 500),
        ('{x="2"}', 0, 300),
        ('{x=~"1|2"}', 600, 900),
        ('{x="",y="9"}', 0, 50),
        ('{le!=""}', 1000, 1000),
        ('{x="1" or z="1"}', 600, 650),
        ('{x!="1",z=~".+"}', 1000, 1000),
        ('{x=~"1|",z!=""}', 1000, 1000),
    ],
)
def test_bound_of_a_selector_is_never_below_what_the_lists_allow(selector: str, complete: int, cut: int) -> None:
    asked = parse_selector(selector)
    assert (COMPLETE.bound(asked), CUT_OFF.bound(asked)) == (complete, cut)


def test_lists_of_ten_are_cut_on_servers_that_ignore_the_limit() -> None:
    ten = entries(**{f"n{number}": 20 - number for number in range(10)})
    found = parse_head(data(headStats={"numSeries": 1000}, seriesCountByMetricName=ten), 2000)
    assert found is not None
    assert found.bound(parse_selector("other")) == 11
    assert found.bound(parse_selector('{x="1"}')) == 1000


def test_victoriametrics_reports_its_series_by_another_name() -> None:
    found = parse_head(data(totalSeries=77, seriesCountByMetricName=entries(a=70)), 2000)
    assert found is not None
    assert (found.series, found.min_time_s, found.bound(parse_selector("a"))) == (77, 0.0, 70)
