"""Issue 17, A1: verdicts: what is added to a request, and how a refusal reads."""

from __future__ import annotations

from urllib.parse import parse_qsl

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from muster.telemetry.guard.decide import Allow, Refuse, decide
from muster.telemetry.guard.limits import Limits
from muster.telemetry.guard.pricing.capabilities import Capabilities
from muster.telemetry.guard.pricing.price import FIXED_BYTES, SERIES_COST, Price
from muster.telemetry.guard.query.operation import Operation
from muster.telemetry.guard.query.parsing import parse

NOW_S = 1_800_000_000.0
OLD, MODERN = Capabilities("prometheus", "2.42.0"), Capabilities("prometheus", "3.16.0", True, True)
FREE = Price()


def operation(path: str, *pairs: tuple[str, str], **named: str) -> Operation:
    return parse("GET", path, [*named.items(), *pairs], "", b"", NOW_S)


def allowed(asked: Operation, capabilities: Capabilities = OLD, limits: Limits | None = None) -> Allow:
    found = decide(asked, FREE, limits or Limits(), capabilities)
    assert isinstance(found, Allow)
    return found


def test_query_gets_the_timeout_of_its_caller() -> None:
    found = allowed(operation("/api/v1/query", query="x", time="5"))
    assert found.parameters == (("query", "x"), ("time", "5"), ("timeout", "60"))
    assert found.notes == ("timeout=60 was added",)


@pytest.mark.parametrize(("asked", "sent"), [("5s", "5"), ("1h", "60"), ("0.25", "0.25")])
def test_shorter_timeout_of_the_request_counts(asked: str, sent: str) -> None:
    found = allowed(operation("/api/v1/query", query="x", timeout=asked))
    assert dict(found.parameters)["timeout"] == sent
    assert found.timeout_s == float(sent)


@pytest.mark.parametrize("path", ["/api/v1/series", "/api/v1/labels", "/api/v1/label/pod/values"])
def test_metadata_request_gets_a_range_and_a_limit_where_it_is_honoured(path: str) -> None:
    asked = operation(path, ("match[]", "x"))
    expected = (("match[]", "x"), ("start", "1799978400"), ("end", "1800000000"))
    assert allowed(asked).parameters == expected
    assert allowed(asked, MODERN).parameters == (*expected, ("limit", "10000"))


@pytest.mark.parametrize(("asked", "sent"), [("5", "5"), ("0", "10000"), ("20000", "10000"), ("", "10000")])
def test_smaller_limit_of_the_request_counts(asked: str, sent: str) -> None:
    found = allowed(operation("/api/v1/series", ("match[]", "x"), limit=asked), MODERN)
    assert dict(found.parameters)["limit"] == sent
    assert [name for name, _ in found.parameters].count("limit") == 1


def test_times_of_the_request_are_kept_in_one_form() -> None:
    asked = operation("/api/v1/series", ("match[]", "x"), start="2027-01-15T00:00:00Z", end="1.8000000004e9")
    assert dict(allowed(asked).parameters) == {"match[]": "x", "start": "1799971200", "end": "1800000000.4"}
    assert dict(allowed(operation("/api/v1/labels", end="30000")).parameters) == {"start": "8400", "end": "30000"}
    assert dict(allowed(operation("/api/v1/labels", start="1799999999")).parameters)["end"] == "1800000000"


def test_unknown_parameters_are_named_in_printable_text() -> None:
    asked = operation("/api/v1/labels", ("a\r\nSet-Cookie: x", "1"), ("_", "2"))
    assert all(each.isprintable() and each.isascii() for each in allowed(asked).notes)
    assert "'_' was left out" in allowed(asked).notes


@pytest.mark.parametrize(
    ("price", "reason"),
    [
        (Price(series=100_001), "too_many_series"),
        (Price(samples=10**9), "too_many_samples"),
        (Price(steps=20_000), "too_many_steps"),
        (Price(range_s=40 * 86400.0), "range_too_long"),
        (Price(answer_bytes=10**9), "answer_too_large"),
        (Price(memory_bytes=10**10), "too_much_memory"),
        (Price(items=10_001), "too_many_values"),
        (None, "unknown_price"),
    ],
)
def test_refusal_names_the_price_the_limit_and_what_to_do(price: Price | None, reason: str) -> None:
    asked = operation("/api/v1/query_range", query="rate(x[5m])", start="1799996400", end="1800000000", step="15")
    found = decide(asked, price, Limits(), OLD)
    assert isinstance(found, Refuse)
    assert (found.status, found.reason) == (422, reason)
    what, _, next_step = found.message.rpartition("; ")
    assert what.startswith("the request is refused: ")
    assert next_step
    assert str(int(found.limit)) in what or price is None


def test_price_at_the_limit_is_allowed() -> None:
    limits = Limits()
    price = Price(series=limits.max_series, samples=limits.max_samples, steps=limits.max_steps)
    assert isinstance(decide(operation("/api/v1/query", query="x"), price, limits, OLD), Allow)


def test_steps_and_range_are_refused_whatever_the_price_is() -> None:
    tiny = operation("/api/v1/query_range", query="x", start="0", end="86400", step="0.001")
    assert isinstance(decide(tiny, FREE, Limits(), OLD), Refuse)
    subquery = operation("/api/v1/query", query="max_over_time(x[1d:1s])")
    assert isinstance(decide(subquery, FREE, Limits(), OLD), Refuse)
    year = operation("/api/v1/label/pod/values", start="0")
    assert isinstance(decide(year, FREE, Limits(), MODERN), Refuse)


@pytest.mark.parametrize(
    "path",
    [
        f"/api/v1/{each}"
        for each in ("status/buildinfo", "rules", "alerts", "metadata", "targets", "labels", "label/pod/values")
    ],
)
def test_short_range_limit_refuses_no_range_that_the_request_does_not_name(path: str) -> None:
    limits = Limits(max_range_s=3600.0)
    found = allowed(operation(path), MODERN, limits)
    if "start" in dict(found.parameters):
        assert float(dict(found.parameters)["end"]) - float(dict(found.parameters)["start"]) == limits.max_range_s


def test_bounded_price_says_so() -> None:
    found = decide(operation("/api/v1/query", query="x"), Price(series=10**6, known="bounded"), Limits(), OLD)
    assert isinstance(found, Refuse)
    assert "up to 1000000 series" in found.message


@pytest.mark.parametrize("query", ["x", "sum by (a) (rate(x{b='c'}[5m]))"])
def test_longer_step_is_offered_for_too_many_samples(query: str) -> None:
    asked = operation("/api/v1/query_range", query=query, start="1799996400", end="1800000000", step="15")
    found = decide(asked, Price(samples=3 * 10**8), Limits(max_samples=10**8), OLD)
    assert isinstance(found, Refuse)
    path, _, form = found.cheaper.partition("?")
    assert (path, dict(parse_qsl(form))["step"]) == ("/api/v1/query_range", "60")
    assert dict(parse_qsl(form))["query"] == query


def test_very_long_request_has_no_form() -> None:
    query = "+".join(f"x{{a='{number}'}}" for number in range(40)) + " " * 5000
    asked = operation("/api/v1/query_range", query=query, start="1799996400", end="1800000000", step="15")
    found = decide(asked, Price(samples=3 * 10**8), Limits(max_samples=10**8), OLD)
    assert isinstance(found, Refuse)
    assert found.cheaper == ""


def test_cost_adds_series_to_samples_and_is_never_free() -> None:
    assert Price().cost == 1
    assert Price(series=2, samples=5).cost == 5 + 2 * SERIES_COST
    assert Price(series=2, samples=5, memory_bytes=FIXED_BYTES).cost == 5 + 2 * SERIES_COST
    assert Price(series=2, samples=5, memory_bytes=FIXED_BYTES + 5_000_000).cost == 1_000_000


amount = st.integers(0, 10**12)


@example(Price(items=5000, answer_bytes=104857601), MODERN, operation("/api/v1/labels"), "items")
@given(
    st.builds(
        Price, series=amount, samples=amount, steps=amount, items=amount, answer_bytes=amount, memory_bytes=amount
    ),
    st.sampled_from([OLD, MODERN]),
    st.sampled_from(
        [
            operation("/api/v1/query", query="x"),
            operation("/api/v1/labels"),
            operation("/federate", ("match[]", "x")),
            operation("/api/v1/series", ("match[]", "x"), ("match[]", "y"), limit="7"),
            operation("/api/v1/metadata"),
        ]
    ),
    st.sampled_from(["series", "samples", "steps", "items", "answer_bytes", "memory_bytes"]),
)
def test_dearer_request_is_never_allowed_where_a_cheaper_one_is_refused(
    price: Price, capabilities: Capabilities, asked: Operation, name: str
) -> None:
    more = {name: getattr(price, name) * 2 + 1}
    if name in ("series", "items"):  # of the same size: where the answer is limited, it is a share by their number
        more = {name: getattr(price, name) * 2, "answer_bytes": price.answer_bytes * 2}
    dearer = msgspec.structs.replace(price, **more)
    if isinstance(decide(asked, price, Limits(), capabilities), Refuse):
        assert isinstance(decide(asked, dearer, Limits(), capabilities), Refuse)
