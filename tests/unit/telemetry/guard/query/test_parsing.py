"""Issue 17, A: requests in every form that Prometheus reads, and those that two programs could read in two ways."""

from __future__ import annotations

import contextlib
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.telemetry.guard.query.errors import BadRequest, NotListed
from muster.telemetry.guard.query.operation import Operation
from muster.telemetry.guard.query.parsing import FORM, MAX_SELECTORS, parse
from muster.telemetry.guard.query.times import EARLIEST_S, parse_time

NOW_S = 1_800_000_000.0
RANGE = {"query": "x", "start": "0", "end": "60", "step": "15"}


def get(path: str, *pairs: tuple[str, str], **named: str) -> Operation:
    return parse("GET", path, [*named.items(), *pairs], "", b"", NOW_S)


def post(path: str, form: str, *pairs: tuple[str, str], content_type: str = FORM) -> Operation:
    return parse("POST", path, pairs, content_type, form.encode(), NOW_S)


def status_of(*args: str, **named: str) -> int:
    with pytest.raises(BadRequest) as error:
        get(*args, **named)
    assert error.value.message
    return error.value.status


def test_range_query_has_times_and_step() -> None:
    found = get(
        "/api/v1/query_range", query="rate(x[5m])", start="2026-01-01T00:00:00Z", end="1767229200.5", step="1m30s"
    )
    assert (found.kind, found.start_s, found.end_s, found.step_s) == ("query_range", 1767225600.0, 1767229200.5, 90.0)
    assert found.selectors[0].range_s == 300.0


def test_instant_query_without_time_is_asked_now() -> None:
    assert get("/api/v1/query", query="x").end_s == NOW_S
    assert get("/api/v1/query", query="x", time="").start_s == NOW_S
    assert get("/api/v1/query", query="x", time="5").start_s == 5.0


def test_form_of_a_post_is_the_same_request_as_the_parameters_of_a_get() -> None:
    pairs = [*RANGE.items(), ("timeout", "5s")]
    asked = get("/api/v1/query_range", *pairs)
    sent = post(
        "/api/v1/query_range", urlencode(pairs), content_type="Application/X-WWW-Form-Urlencoded; charset=utf-8"
    )
    assert (sent.expression, sent.start_s, sent.step_s, sent.timeout_s) == (asked.expression, 0.0, 15.0, 5.0)
    assert sent.parameters == asked.parameters


def test_parameters_in_address_and_body_are_one_request() -> None:
    assert post("/api/v1/query", "query=x", ("time", "7")).end_s == 7.0


@pytest.mark.parametrize("name", ["query", "start", "end", "step", "timeout", "limit", "lookback_delta"])
def test_parameter_given_twice_is_refused(name: str) -> None:
    values = {**RANGE, "timeout": "5s", "limit": "5", "lookback_delta": "5m"}
    assert status_of_post(urlencode(values), (name, values[name])) == 400
    assert status_of_post(urlencode([*values.items(), (name, values[name])])) == 400


def status_of_post(form: str, *pairs: tuple[str, str]) -> int:
    with pytest.raises(BadRequest) as error:
        post("/api/v1/query_range", form, *pairs)
    return error.value.status


@pytest.mark.parametrize("content_type", ["", "application/json", "multipart/form-data; boundary=x", "text/plain"])
def test_body_of_another_type_is_refused_since_the_server_might_read_it(content_type: str) -> None:
    with pytest.raises(BadRequest) as error:
        post("/api/v1/query", "query=x", ("query", "y"), content_type=content_type)
    assert error.value.status == 415


def test_post_without_a_body_needs_no_type() -> None:
    assert post("/api/v1/query", "", ("query", "x"), content_type="").expression is not None


@pytest.mark.parametrize("form", ["query=%ff", "query=\u00e9", "&".join(["a=b"] * 2000)])
def test_form_that_is_not_valid_is_refused(form: str) -> None:
    with pytest.raises(BadRequest) as error:
        post("/api/v1/query", form)
    assert error.value.status == 400


def test_matchers_are_repeated_in_address_and_body() -> None:
    found = post("/api/v1/series", "match[]=up&match[]=%7Ble%21%3D%22%22%7D", ("match[]", "down"))
    assert [str(each) for each in found.selectors] == ['{__name__="up"}', '{le!=""}', '{__name__="down"}']
    assert (found.start_s, found.end_s) == (None, None)


def test_label_values_name_their_label() -> None:
    found = get("/api/v1/label/pod/values", ("match[]", "up"), start="5")
    assert (found.kind, found.label, found.start_s, len(found.selectors)) == ("label_values", "pod", 5.0, 1)


@pytest.mark.parametrize("path", ["/api/v1/series", "/federate"])
def test_series_and_federation_need_a_selector(path: str) -> None:
    assert status_of(path) == 400


@pytest.mark.parametrize(
    "path",
    ["/api/v1/admin/tsdb/delete_series", "/-/reload", "/api/v1/status/config", "/api/v1/query/",
     "/api/v1/label//values",
     "/api/v1/label/a/b/values", "/api/v1/write", "/api/v1/targets/metadata", "/graph", "", "/api/v2/query"],
)  # fmt: skip
def test_other_paths_are_not_listed(path: str) -> None:
    with pytest.raises(NotListed):
        get(path, query="x")


@pytest.mark.parametrize(("method", "path"), [("PUT", "/api/v1/query"), ("POST", "/federate"), ("GET", "/api/v1/read")])
def test_other_methods_are_refused(method: str, path: str) -> None:
    with pytest.raises(BadRequest) as error:
        parse(method, path, [("query", "x"), ("match[]", "x")], "", b"", NOW_S)
    assert error.value.status == 405


@pytest.mark.parametrize("step", ["0", "-1", "", "NaN", "Inf", "1e-9", "0s", "x", "1_0", "0x10", "9" * 100])
def test_step_that_is_not_positive_is_refused(step: str) -> None:
    assert status_of("/api/v1/query_range", **{**RANGE, "step": step}) == 400


@pytest.mark.parametrize(
    "time", ["NaN", "-Inf", "+inf", "1e30", "0x1p3", "1_000", "yesterday", "2026-13-01T00:00:00Z", "٣"]
)
@pytest.mark.parametrize("name", ["start", "end"])
def test_odd_time_is_refused(name: str, time: str) -> None:
    assert status_of("/api/v1/query_range", **{**RANGE, name: time}) == 400


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1.5", 1.5), ("-7", -7.0), (".5", 0.5), ("1e3", 1000.0), ("1970-01-01T00:00:01.25Z", 1.25),
     ("1970-01-01T01:00:00+01:00", 0.0),
     ("-292273086-05-16T16:47:06Z", EARLIEST_S), ("0001-01-01T00:00:00Z", -62135596800.0)],
)  # fmt: skip
def test_times_of_the_api_are_read(text: str, expected: float) -> None:
    assert parse_time(text, "time") == expected


def test_end_before_start_is_refused() -> None:
    assert status_of("/api/v1/series", ("match[]", "x"), start="9", end="8") == 400  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", ["-1", "x", "1.5", "9" * 19, "\u0663"])
def test_limit_that_is_not_a_number_is_refused(limit: str) -> None:
    assert status_of("/api/v1/labels", limit=limit) == 400


def test_limit_of_zero_does_not_limit() -> None:
    assert get("/api/v1/labels", limit="0").limit is None


def test_long_lookback_is_refused_since_it_finds_series_that_ended() -> None:
    assert get("/api/v1/query", query="x", lookback_delta="10m").lookback_s == 600.0
    assert status_of("/api/v1/query", query="x", lookback_delta="365d") == 422


def test_unknown_parameter_is_left_out_and_reported() -> None:
    found = get("/api/v1/query", query="x", _="123", max_samples_read="5", dedup="true")
    assert found.ignored == ("_", "max_samples_read")
    assert dict(found.parameters) == {"query": "x", "dedup": "true"}


def test_request_with_very_many_selectors_is_refused() -> None:
    many = "+".join(["x"] * (MAX_SELECTORS + 1))
    assert status_of("/api/v1/query", query=many) == 422
    with pytest.raises(BadRequest):
        get("/api/v1/series", *[("match[]", "x")] * (MAX_SELECTORS + 1))


@pytest.mark.parametrize("query", ["", "sum(", "x{", "x smoothed"])
def test_query_that_cannot_be_parsed_is_refused_with_its_reason(query: str) -> None:
    with pytest.raises(BadRequest, match="cannot be parsed"):
        get("/api/v1/query", query=query)


@given(
    st.sampled_from(
        ["/api/v1/query", "/api/v1/query_range", "/api/v1/series", "/api/v1/labels", "/api/v1/read", "/federate"]
    ),
    st.lists(
        st.tuples(
            st.sampled_from(
                ["query", "match[]", "start", "end", "step", "time", "timeout", "limit", "lookback_delta", "x"]
            ),
            st.text(max_size=8) | st.sampled_from(["x", "1", "5m", "{a='b'}", "-1", "NaN"]),
        ),
        max_size=6,
    ),
    st.binary(max_size=20),
    st.sampled_from(["GET", "POST"]),
)
def test_any_request_becomes_an_operation_or_a_bad_request(
    path: str, pairs: list[tuple[str, str]], body: bytes, method: str
) -> None:
    with contextlib.suppress(BadRequest):
        found = parse(method, path, pairs, FORM, body if method == "POST" else b"", NOW_S)
        assert found.step_s >= 0
        assert found.start_s is None or found.end_s is None or found.start_s <= found.end_s
