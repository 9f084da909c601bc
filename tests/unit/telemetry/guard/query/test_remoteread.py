"""Issue 17, A: remote read: snappy around protobuf, bounded before it is decoded."""

from __future__ import annotations

import contextlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.telemetry.guard.query.errors import BadRequest
from muster.telemetry.guard.query.parsing import parse
from muster.telemetry.guard.query.remoteread import MAX_DECODED_BYTES, MAX_FIELDS, decode_read_request
from muster.telemetry.promql.matcher import Matcher


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def matcher(kind: int, name: str, value: str) -> bytes:
    return message(3, number(1, kind) + message(2, name.encode()) + message(3, value.encode()))


def query(start_ms: int, end_ms: int, *matchers: bytes) -> bytes:
    return message(1, number(1, start_ms) + number(2, end_ms) + b"".join(matchers))


def compressed(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def test_each_query_is_a_selector_over_its_time() -> None:
    hints = message(4, number(1, 15000) + message(2, b"rate"))
    first = message(
        1, number(1, 1000) + number(2, 61_000) + matcher(0, "__name__", "up") + matcher(3, "job", "a|b") + hints
    )
    found = decode_read_request(compressed(first + query(-5000, 0, matcher(2, "x", ".+")) + number(2, 1)))
    assert [(each.range_s, each.at) for each in found] == [(60.0, 61.0), (5.0, 0.0)]
    assert found[0].matchers == ((Matcher("__name__", "=", "up"), Matcher("job", "!~", "a|b")),)


@pytest.mark.parametrize(
    ("hinted", "range_s", "at_s"),
    [
        ([(3, 1000), (4, 90_000)], 89.0, 90.0),
        ([(4, 62_000)], 62.0, 62.0),
        ([(3, -3000), (4, 10_000)], 64.0, 61.0),
        ([(3, 60_500), (4, 60_700)], 1.0, 61.0),
        ([(3, 60_500)], 1.0, 61.0),
    ],
)
def test_samples_that_hints_choose_are_priced(hinted: list[tuple[int, int]], range_s: float, at_s: float) -> None:
    times = number(1, 60_000) + number(2, 61_000) + matcher(0, "a", "b")
    at_once = message(4, b"".join(number(*each) for each in hinted))
    in_parts = b"".join(message(4, number(*each)) for each in hinted)
    for hints in (at_once, in_parts):
        (found,) = decode_read_request(compressed(message(1, times + hints)))
        assert (found.range_s, found.at) == (range_s, at_s)


@pytest.mark.parametrize(
    "data",
    [
        message(1, b"") * (MAX_FIELDS + 1),
        number(3, 0) * (MAX_FIELDS + 1),
        message(1, message(3, b"") * MAX_FIELDS),
        message(1, message(3, number(1, 0) * MAX_FIELDS)),
        message(1, message(4, number(1, 0) * MAX_FIELDS)),
        message(1, message(3, b"") * (MAX_FIELDS // 2)) * 3,
    ],
    ids=["queries", "unknown", "matchers", "in a matcher", "in hints", "in all"],
)
def test_request_of_very_many_fields_is_refused_while_it_is_read(data: bytes) -> None:
    with pytest.raises(BadRequest, match="more than 10000 fields") as caught:
        decode_read_request(compressed(data))
    assert caught.value.status == 413


def test_operation_covers_all_queries() -> None:
    body = compressed(query(1000, 5000, matcher(0, "a", "b")) + query(3000, 9000, matcher(0, "a", "b")))
    found = parse("POST", "/api/v1/read", [], "application/x-protobuf", body, 10.0)
    assert (found.start_s, found.end_s, found.body) == (1.0, 9.0, body)


def test_last_value_of_a_field_counts_as_for_the_server() -> None:
    body = message(1, number(2, 5000) + number(2, 9000) + message(3, message(2, b"a") + message(2, b"b")))
    (found,) = decode_read_request(compressed(body))
    assert (found.at, found.matchers[0][0].name) == (9.0, "b")


@pytest.mark.parametrize(
    "body",
    [b"", b"\xff" * 20, compressed(b"\xff" * 20), compressed(query(0, 1, matcher(9, "a", "b"))), b"\x05abc",
     compressed(query(0, 1, message(3, message(2, b"\xff"))))],
)  # fmt: skip
def test_broken_body_is_a_bad_request(body: bytes) -> None:
    if not body:
        assert decode_read_request(compressed(b"")) == ()
    with pytest.raises(BadRequest) as error:
        decode_read_request(body)
    assert error.value.status == 400


def test_bomb_is_refused_before_it_is_decompressed() -> None:
    bomb = compressed(b"\0" * (MAX_DECODED_BYTES + 1))
    assert len(bomb) < MAX_DECODED_BYTES / 10
    with pytest.raises(BadRequest) as error:
        decode_read_request(bomb)
    assert error.value.status == 413


@given(st.binary(max_size=60))
def test_any_bytes_are_decoded_or_a_bad_request(data: bytes) -> None:
    for body in (data, compressed(data)):
        with contextlib.suppress(BadRequest):
            assert all(each.range_s >= 0 for each in decode_read_request(body))
