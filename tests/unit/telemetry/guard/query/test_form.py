"""Forms and query strings are read and written as the standard library does it."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from muster.telemetry.guard.query.form import TooManyPairs, decode_pairs, encode_pairs

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ENCODED = st.lists(st.sampled_from(["a", "=", "&", "+", "%20", "%C3%A9", "%", "%zz", "é", "."]), max_size=12).map(
    "".join
)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=5))
def test_pairs_are_encoded_as_a_form_and_decoded_again(pairs: list[tuple[str, str]]) -> None:
    assert encode_pairs(pairs) == urlencode(pairs)
    assert decode_pairs(encode_pairs(pairs), 100) == tuple(pairs)


@given(ENCODED)
def test_any_text_is_decoded_as_parse_qsl_does(text: str) -> None:
    try:
        expected = tuple(parse_qsl(text, keep_blank_values=True, errors="strict"))
    except UnicodeDecodeError:
        with pytest.raises(UnicodeDecodeError):
            decode_pairs(text, 100)
    else:
        assert decode_pairs(text, 100) == expected


def test_long_texts_are_coded_as_short_ones() -> None:
    pairs = [("query", "a b" * 10_000)]
    assert decode_pairs(encode_pairs(pairs), 1) == tuple(pairs)


def test_too_many_pairs_and_invalid_utf_8_are_refused() -> None:
    assert len(decode_pairs("&".join(["a=1"] * 5), 5)) == 5
    with pytest.raises(TooManyPairs):
        decode_pairs("&".join(["a=1"] * 6), 5)
    for _ in range(2):  # an error is not remembered as a text
        with pytest.raises(UnicodeDecodeError):
            decode_pairs("a=%ff", 5)
